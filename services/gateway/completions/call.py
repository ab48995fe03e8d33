"""One call of a completion route: its generations, and what its answer has to look like.

Joins body and headers; the rules for each are in `translate.py` and `sessions.py`.
"""

import random
from dataclasses import dataclass

import msgspec

from services.gateway.completions.completion_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingBody,
)
from services.gateway.completions.idempotency import Once
from services.gateway.completions.translate import (
    Origin,
    chat_request,
    completion_requests,
    refuse_unsupported,
)
from services.gateway.sessions.session_conditions import with_conditions
from services.gateway.sessions.session_headers import STREAM_GRACE, RawHeaders, given_session, session_mode
from shared.errors import InvalidRequest
from shared.identity import new_session_id, request_root
from shared.messages import GenerateRequest, SessionRef


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked for.

    session_id: empty when there is no session.
    event_ids: whether the events of a stream carry ids.
    timeout_s: the body's wish; None: it says nothing.
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
    once: Once | None = None,
    root_key: bytes = b"",
) -> Call:
    """A chat completion; without a session of the caller's it gets a new one, named after its root.

    root_key: see `root_key.py`. Raises `InvalidRequest` that names the field or header.
    """
    unknown = refuse_unsupported(body)
    session = given_session(headers, body.session_id)
    request = chat_request(body, Origin(request_id, tenant, _seed(once), session))
    session = with_conditions(session, headers, body.session_must_exist, request.messages or [])
    if session is None:
        root, mode = request_root(request, root_key), session_mode(headers)
        if once is None:
            session = SessionRef(session_id=new_session_id(root), given=False, mode=mode)
        else:  # its record is looked up: the call may have been made before
            session = SessionRef(session_id=once.session_id(root), mode=mode)
    if session is not request.session:
        request = msgspec.structs.replace(request, session=session)
    if session.given and once is None:
        request = msgspec.structs.replace(request, confirms=True)
    return _call(body, headers, request_id, [_to_count_once(request, once)], unknown)


def completion_call(
    body: CompletionRequest, headers: RawHeaders, *, request_id: str, tenant: str, once: Once | None = None
) -> Call:
    """A completion; it belongs to a session only if the caller says so. Raises like `chat_call`."""
    unknown = refuse_unsupported(body)
    session = given_session(headers, body.session_id)
    with_conditions(None, headers, body.session_must_exist, [])  # here a session decides the route alone
    count = len(body.prompt)
    request_ids = [request_id] if count == 1 else [f"{request_id}-{place}" for place in range(count)]
    requests = completion_requests(body, Origin(request_id, tenant, _seed(once), session), request_ids)
    if count == 1:
        requests = [_to_count_once(requests[0], once)]
    return _call(body, headers, request_id, requests, unknown)


def _seed(once: Once | None) -> int:
    if once is not None:
        return once.seed
    return random.getrandbits(63)  # it decides what is drawn, not who may see it


def _to_count_once(request: GenerateRequest, once: Once | None) -> GenerateRequest:
    if once is None:
        return request
    return msgspec.structs.replace(request, call_key=once.name, call_digest=once.digest)


def _call(
    body: SamplingBody,
    headers: RawHeaders,
    request_id: str,
    requests: list[GenerateRequest],
    unknown: int,
) -> Call:
    sampling = requests[0].sampling
    session = requests[0].session
    options = body.stream_options
    ids = None if options is None else options.include_event_ids
    if ids and len(requests) > 1:
        raise InvalidRequest(
            "`stream_options.include_event_ids` needs a single prompt: a stream of several cannot be resumed",
            param="stream_options.include_event_ids",
        )
    return Call(
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
