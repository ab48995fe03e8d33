"""Makes the call of a text completion from its body and headers: a generation for each prompt."""

from services.gateway.admission.request_headers import given_session
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import count_once, seed_of
from services.gateway.answering.intake.session_conditions import with_conditions
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.fields.completion_call import call_of_body, judge_body
from services.gateway.formats.fields.sampling import Origin, field_names_of
from services.gateway.formats.text.schema import CompletionRequest
from services.gateway.formats.text.translation import completion_requests
from shared.errors import InvalidRequest


def completion_call(body: CompletionRequest, origin: CallOrigin, *, max_prompts: int) -> Call:
    """Makes the call of a text completion, of a session only if the caller names one; see `chat_call`."""
    count, request_id = len(body.prompt), origin.request_id
    if count > max_prompts:
        raise InvalidRequest(f"`prompt` may have {max_prompts} prompts, got {count}", param="prompt")
    unknown, left_out = judge_body(body)
    session = given_session(origin.headers, body.session_id)
    # here a session only decides the route
    with_conditions(None, origin.headers, body.session_must_exist, [])
    request_ids = [request_id] if count == 1 else [f"{request_id}-{index}" for index in range(count)]
    from_call = Origin(request_id, origin.tenant, seed_of(origin.once), session)
    requests = completion_requests(body, from_call, request_ids)
    if count == 1:
        requests = [count_once(requests[0], origin.once)]
    return call_of_body(
        "completion",
        body,
        origin,
        requests,
        unknown=unknown,
        left_out=left_out,
        field_names=field_names_of(body),
    )
