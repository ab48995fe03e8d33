"""Makes a call of a completion route from its body and headers: its generations and the form of its answer.

The rules for bodies are in `request_translation.py`, those for headers in `request_headers.py` and
`session_conditions.py`.
"""

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
from services.gateway.completions.unsupported_fields import refuse_unsupported
from services.gateway.generation.door import GenerationCall
from services.gateway.generation.idempotency import IdempotentCall
from services.gateway.generation.new_calls import count_once, in_session, seed_of
from services.gateway.generation.session_conditions import with_conditions
from services.gateway.http.request_headers import STREAM_GRACE, RawHeaders, given_session
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest

PROMPT_LOGPROBS = b"prompt_logprobs"  # in a call's data: the answer has that field


def chat_call(
    body: ChatCompletionRequest,
    headers: RawHeaders,
    *,
    request_id: str,
    tenant: str,
    once: IdempotentCall | None = None,
    root_key: bytes = b"",
) -> GenerationCall:
    """Makes the call of a chat completion. If the caller names no session it begins a new one.

    Args:
        body: The checked body.
        headers: Headers of the request.
        request_id: The id of the request as it travels.
        tenant: Whose call it is.
        once: What its `Idempotency-Key` says, if it has one.
        root_key: The secret behind new session ids; see `root_key.py`.

    Raises:
        InvalidRequest: A field or header is wrong; names it.
    """
    unknown = refuse_unsupported(body)
    session = given_session(headers, body.session_id)
    request = chat_request(body, Origin(request_id, tenant, seed_of(once), session))
    request = in_session(request, headers, body.session_must_exist, once, root_key)
    return _call(body, headers, request_id, [count_once(request, once)], unknown)


def completion_call(
    body: CompletionRequest,
    headers: RawHeaders,
    *,
    request_id: str,
    tenant: str,
    once: IdempotentCall | None = None,
) -> GenerationCall:
    """Makes the call of a text completion, of a session only if the caller names one; see `chat_call`."""
    unknown = refuse_unsupported(body)
    session = given_session(headers, body.session_id)
    with_conditions(None, headers, body.session_must_exist, [])  # here a session only decides the route
    count = len(body.prompt)
    request_ids = [request_id] if count == 1 else [f"{request_id}-{place}" for place in range(count)]
    requests = completion_requests(body, Origin(request_id, tenant, seed_of(once), session), request_ids)
    if count == 1:
        requests = [count_once(requests[0], once)]
    return _call(body, headers, request_id, requests, unknown)


def _call(
    body: SamplingBody,
    headers: RawHeaders,
    request_id: str,
    requests: list[GenerateRequest],
    unknown: list[str],
) -> GenerationCall:
    options = body.stream_options
    ids = None if options is None else options.include_event_ids
    if ids and len(requests) > 1:
        raise InvalidRequest(
            "`stream_options.include_event_ids` needs a single prompt: a stream of several cannot be resumed",
            param="stream_options.include_event_ids",
        )
    return GenerationCall(
        request_id=request_id,
        requests=requests,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        event_ids=STREAM_GRACE in headers if ids is None else ids,
        timeout_s=body.timeout,
        unknown_fields=unknown,
        door_data=b"" if body.prompt_logprobs is None else PROMPT_LOGPROBS,
        field_names=field_names_of(body),
    )
