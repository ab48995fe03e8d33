"""Makes a call of a completion route from its body and headers: its generations and the form of its answer.

The rules for bodies are in `request_translation.py`, those for headers in `request_headers.py` and
`session_conditions.py`.
"""

import random
from dataclasses import dataclass

import msgspec

from services.gateway.completions.completion_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingBody,
)
from services.gateway.completions.idempotency import IdempotentCall
from services.gateway.completions.request_translation import (
    Origin,
    chat_request,
    completion_requests,
    refuse_unsupported,
)
from services.gateway.completions.session_conditions import with_conditions
from services.gateway.http.request_headers import STREAM_GRACE, RawHeaders, given_session, session_mode
from shared.errors import InvalidRequest
from shared.identity import new_session_id, request_root
from shared.messages import GenerateRequest, SessionRef


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """One call of a completion route.

    Attributes:
        requests: One generation for each prompt.
        event_ids: The events of a stream carry ids.
        session_id: Empty if there is no session.
        timeout_s: The time limit in the body; None if it has none.
        unknown_fields: How many fields of the body are not known.
    """

    request_id: str
    model: str
    requests: list[GenerateRequest]
    n: int
    stream: bool
    include_usage: bool
    event_ids: bool
    logprobs: bool
    session_id: str
    timeout_s: float | None
    unknown_fields: int


def chat_call(
    body: ChatCompletionRequest,
    headers: RawHeaders,
    *,
    request_id: str,
    tenant: str,
    once: IdempotentCall | None = None,
    root_key: bytes = b"",
) -> CompletionCall:
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
    request = chat_request(body, Origin(request_id, tenant, _seed(once), session))
    session = with_conditions(session, headers, body.session_must_exist, request.messages or [])
    if session is None:
        root, mode = request_root(request, root_key), session_mode(headers)
        if once is None:
            session = SessionRef(session_id=new_session_id(root), given=False, mode=mode)
        else:  # the same id for the same call, whose record may exist already
            session = SessionRef(session_id=once.session_id(root), mode=mode)
    if session is not request.session:
        request = msgspec.structs.replace(request, session=session)
    if session.given and once is None:
        request = msgspec.structs.replace(request, confirms=True)
    return _call(body, headers, request_id, [_to_count_once(request, once)], unknown)


def completion_call(
    body: CompletionRequest,
    headers: RawHeaders,
    *,
    request_id: str,
    tenant: str,
    once: IdempotentCall | None = None,
) -> CompletionCall:
    """Makes the call of a text completion, of a session only if the caller names one; see `chat_call`."""
    unknown = refuse_unsupported(body)
    session = given_session(headers, body.session_id)
    with_conditions(None, headers, body.session_must_exist, [])  # here a session only decides the route
    count = len(body.prompt)
    request_ids = [request_id] if count == 1 else [f"{request_id}-{place}" for place in range(count)]
    requests = completion_requests(body, Origin(request_id, tenant, _seed(once), session), request_ids)
    if count == 1:
        requests = [_to_count_once(requests[0], once)]
    return _call(body, headers, request_id, requests, unknown)


def _seed(once: IdempotentCall | None) -> int:
    if once is not None:
        return once.seed
    return random.getrandbits(63)  # no secret: it decides what is drawn


def _to_count_once(request: GenerateRequest, once: IdempotentCall | None) -> GenerateRequest:
    if once is None:
        return request
    return msgspec.structs.replace(request, call_key=once.name, call_digest=once.digest)


def _call(
    body: SamplingBody,
    headers: RawHeaders,
    request_id: str,
    requests: list[GenerateRequest],
    unknown: int,
) -> CompletionCall:
    sampling = requests[0].sampling
    session = requests[0].session
    options = body.stream_options
    ids = None if options is None else options.include_event_ids
    if ids and len(requests) > 1:
        raise InvalidRequest(
            "`stream_options.include_event_ids` needs a single prompt: a stream of several cannot be resumed",
            param="stream_options.include_event_ids",
        )
    return CompletionCall(
        request_id=request_id,
        model=body.model,
        requests=requests,
        n=sampling.n,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        event_ids=STREAM_GRACE in headers if ids is None else ids,
        logprobs=sampling.logprobs >= 0,
        session_id=session.session_id if session else "",
        timeout_s=body.timeout,
        unknown_fields=unknown,
    )
