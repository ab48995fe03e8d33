"""Makes a call of a completion route from its body and headers: its generations and the form of its answer.

The rules for bodies are in `request_translation.py`, those for headers in `request_headers.py` and
`session_conditions.py`.
"""

from collections.abc import Iterator

from services.gateway.admission.request_headers import STREAM_GRACE, given_session
from services.gateway.answering.call import Call
from services.gateway.answering.new_calls import count_once, in_session, seed_of
from services.gateway.answering.session_conditions import with_conditions
from services.gateway.bodies.body_format import CallOrigin
from services.gateway.completions.chat_tools import SERVED_TYPES
from services.gateway.completions.completion_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingBody,
)
from services.gateway.completions.request_translation import (
    Origin,
    chat_request,
    completion_requests,
    field_names_of,
)
from services.gateway.field_policy.field_rules import (
    POLICY,
    inner_without_tools,
    judge_fields,
    offered_tools,
    refuse_unless_neutral,
)
from services.gateway.field_policy.left_out import LeftOut, request_without_blocks
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest

# words in a call's data: the answer has that field
PROMPT_LOGPROBS, SERVICE_TIER = b"prompt_logprobs", b"service_tier"


def chat_call(body: ChatCompletionRequest, origin: CallOrigin) -> Call:
    """Makes the call of a chat completion. If the caller names no session it begins a new one.

    Args:
        body: The checked body.
        origin: What the call has beside it.

    Raises:
        InvalidRequest: A field or header is wrong; names it.
    """
    unknown, left_out = judge_body(body)
    session = given_session(origin.headers, body.session_id)
    request = chat_request(body, Origin(origin.request_id, origin.tenant, seed_of(origin.once), session))
    request, blocks = request_without_blocks(request, origin.drops_blocks)
    left_out += blocks
    if request.messages is None:  # token ids are no turn of a session, which only decides the route
        with_conditions(None, origin.headers, body.session_must_exist, [])
    else:
        request = in_session(request, origin.headers, body.session_must_exist, origin.once, origin.root_key)
    return _call(body, origin, [count_once(request, origin.once)], unknown, left_out)


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
    return _call(body, origin, requests, unknown, left_out)


def _format_words(body: SamplingBody) -> Iterator[bytes]:
    if body.prompt_logprobs is not None:
        yield PROMPT_LOGPROBS
    if body.service_tier is not None:
        yield SERVICE_TIER


def _call(
    body: SamplingBody,
    origin: CallOrigin,
    requests: list[GenerateRequest],
    unknown: list[str],
    left_out: list[LeftOut],
) -> Call:
    options = body.stream_options
    ids = None if options is None else options.include_event_ids
    if ids and len(requests) > 1:
        raise InvalidRequest(
            "`stream_options.include_event_ids` needs a single prompt: a stream of several cannot be resumed",
            param="stream_options.include_event_ids",
        )
    return Call(
        kind="chat" if isinstance(body, ChatCompletionRequest) else "completion",
        request_id=origin.request_id,
        requests=requests,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        event_ids=STREAM_GRACE in origin.headers if ids is None else ids,
        timeout_s=body.timeout,
        unknown_fields=[*unknown, *inner_without_tools(body.unknown_inside, left_out)],
        left_out=left_out,
        format_data=b" ".join(_format_words(body)),
        field_names=field_names_of(body),
    )


def judge_body(body: SamplingBody) -> tuple[list[str], list[LeftOut]]:
    """Judges the unknown fields of a body, and its tools.

    Returns:
        The names of the fields that are not known, shortened; and what is known and left out.

    Raises:
        InvalidRequest: A field or tool changes the meaning of the answer or is misspelt; names it.
    """
    for field, rule in POLICY["completion"].items():
        refuse_unless_neutral(field, (body.model_extra or {}).get(field), rule)
    unknown, left_out = judge_fields(body.model_extra, type(body).model_fields)
    if isinstance(body, ChatCompletionRequest):
        for index, message in enumerate(body.messages or ()):
            for field, value in (message.model_extra or {}).items():
                if field in POLICY["message of a chat"]:
                    rule = POLICY["message of a chat"][field]
                    refuse_unless_neutral(f"messages[{index}].{field}", value, rule)
        if isinstance(body.tools, list):
            left_out += offered_tools(body.tools, SERVED_TYPES).left_out
    return unknown, left_out
