"""Reads and checks a request in a bus message, and finds the subject to answer on if it cannot be used."""

import re
import sys
from collections.abc import Mapping
from re import compile as regex
from typing import Annotated

import msgspec

from services.router.domain.decision import RequestFacts
from services.router.domain.session_memory import Asker
from services.router.outside.requests import check_reply_to, confine
from shared.bus import Message
from shared.bus.subject import can_answer
from shared.codec import decode, encode, fields_of
from shared.errors import InvalidRequest
from shared.guest_needs import needs_of
from shared.identity import routing_key, session_key
from shared.messages import GenerateRequest, ListModels, SessionRef, Wire
from shared.messages.base import (
    DEFAULT_TENANT,
    ID_PATTERN,
    MAX_ATTEMPT,
    Attempt,
    ModelName,
    RequestId,
    Tenant,
    TokenIds,
)
from shared.messages.conversation import Role
from shared.messages.generate import MAX_CHOICES
from shared.subjects import HEADER_TIMEOUT, caller_of
from shared.telemetry.trace_context import carry

_MILLISECONDS = re.compile(r"-?[0-9]{1,15}")
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000
_REQUEST_ID = regex(ID_PATTERN)
_BYTES_PER_TOKEN = 4  # of English text, about


class HeadMessage(Wire, frozen=True):
    """What a router needs of a `ChatMessage`."""

    role: Role


class HeadSampling(Wire, frozen=True):
    """What a router needs of `Sampling`."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1


class HeadResume(Wire, frozen=True):
    """What a router needs of a `ResumePoint`."""

    fingerprint: Annotated[str, msgspec.Meta(max_length=256)] = ""


class RequestHead(Wire, frozen=True, kw_only=True):
    """What a router needs of a `GenerateRequest` with a session. The rest is for the leader to check."""

    request_id: RequestId
    model: ModelName
    messages: list[HeadMessage] | None = None
    prompt: str | None = None
    prompt_token_ids: TokenIds | None = None
    sampling: HeadSampling = HeadSampling()
    session: SessionRef | None = None
    tenant: Tenant = DEFAULT_TENANT
    priority: Annotated[int, msgspec.Meta(ge=-10, le=10)] = 0
    attempt: Attempt = 0
    reply_to: str = ""
    resume: HeadResume | None = None
    party: Annotated[str, msgspec.Meta(max_length=128)] = ""
    lost_group: Annotated[str, msgspec.Meta(max_length=64)] = ""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """A request that can be routed. `deadline` is in monotonic seconds; None if there is none."""

    data: bytes
    request_id: str
    attempt: int
    asker: Asker
    session_id: str  # only one that the caller gave
    reply_to: str
    facts: RequestFacts
    deadline: float | None
    headers: dict[str, str]
    outside: bool = False
    party: str = ""  # for whom it counts where groups are shared
    weight: float = 1.0  # of the party
    lost_group: str = ""  # of the previous attempt, which another router may have sent

    @property
    def key(self) -> str:
        """Names this attempt of the request, as one token of a subject; ids are unique in a tenant only."""
        return f"{self.asker.tenant}={self.request_id}-{self.attempt}"


class Sender(msgspec.Struct, frozen=True, gc=False):
    """The sender of a message, as far as it can be read."""

    request_id: str
    attempt: int
    reply_to: str  # empty: there is nowhere to answer


def read(message: Message, now: float, max_outside_priority: int = 0, key_id: str = "") -> Incoming:
    """Read the request in a message that arrived `now`.

    The bytes of a service go on untouched. Those of a caller outside are encoded anew, without the fields
    that it may not set, and with the `key_id` of its record.

    Raises:
        InvalidRequest: it is no `GenerateRequest`, or one that no leader could use, or of a caller outside
            that may not say what it says.
    """
    data, headers, caller = message.data, message.headers, caller_of(message.subject)
    request = _decoded(data, whole=caller is not None)
    if (request.messages is None) + (request.prompt is None) + (request.prompt_token_ids is None) != 2:
        raise _not_one_input(request)
    reply_to = request.reply_to or message.reply
    check_reply_to(reply_to, caller)
    if caller is not None and isinstance(request, GenerateRequest):
        request = confine(request, caller, max_outside_priority, key_id)
        data = encode(request)
    left_ms = read_timeout_ms(headers)
    session, resume = request.session, request.resume
    resumed = request.attempt > 0 and caller is None
    lost_group = request.lost_group if resumed else ""
    facts = RequestFacts(
        request.model,
        routing_key(request) if isinstance(request, GenerateRequest) else session_key(_session_id(session)),
        len(message.data) // _BYTES_PER_TOKEN,
        priority=request.priority,
        last_group=lost_group,
        resumed=resumed,
        # without the KV format, which heartbeats do not name
        weights=resume.fingerprint.partition("/")[0] if resume is not None else "",
        slots=request.sampling.n,
    )
    return Incoming(
        data=data,
        request_id=request.request_id,
        attempt=request.attempt,
        asker=_asker(request),
        session_id=session.session_id if session is not None and session.given else "",
        reply_to=reply_to,
        facts=facts,
        deadline=now + left_ms / 1000 if left_ms is not None else None,
        headers=carry(headers),
        outside=caller is not None,
        party=request.party or request.tenant,
        weight=request.weight,
        lost_group=lost_group,
    )


def guest_needs(data: bytes, *, adapter: bool) -> Mapping[str, str]:
    """What a request needs that guests may lack; nothing if it is wrong, which is for a leader to say."""
    try:
        return needs_of(decode(data, GenerateRequest), adapter=adapter)
    except InvalidRequest:
        return {}


def _decoded(data: bytes, *, whole: bool) -> GenerateRequest | RequestHead:
    """The request, or its head if that is enough: a conversation without a session is routed by its text."""
    if not whole:
        try:
            head = decode(data, RequestHead)
            if head.session is not None:
                return head
        except InvalidRequest:  # the error is to name the field of a `GenerateRequest`
            pass
    return decode(data, GenerateRequest)


def _not_one_input(request: GenerateRequest | RequestHead) -> InvalidRequest:
    given = [
        name for name in ("messages", "prompt", "prompt_token_ids") if getattr(request, name) is not None
    ]
    what = f"got {' and '.join(given)}" if given else "got none"
    return InvalidRequest(
        f"exactly one of messages, prompt and prompt_token_ids is needed, {what}",
        param=given[1] if given else "messages",
    )


def _session_id(session: SessionRef | None) -> str:
    return session.session_id if session is not None else ""


def _asker(request: GenerateRequest | RequestHead) -> Asker:
    """The session of a request, and whether it repeats its conversation (`SessionRef.mode` has the rule)."""
    session, messages = request.session, request.messages or ()
    continues = False
    for message in messages:
        if message.role == "assistant":
            continues = True
            break
    if session is None:
        return Asker(request.tenant, "", True, continues)
    mode = session.mode
    appends = session.given and bool(messages) and (mode == "append" or (mode == "auto" and not continues))
    return Asker(request.tenant, session.session_id, not appends, continues)


def read_timeout_ms(headers: Mapping[str, str]) -> int | None:
    """The milliseconds that the caller has left; below 0: its time is over; None: no limit.

    Raises:
        InvalidRequest: it is no whole number, or more than a week.
    """
    text = headers.get(HEADER_TIMEOUT)
    if text is None:
        return None
    plain = len(text) < 10 and text.isascii() and text.isdecimal()  # as all services send it
    left_ms = int(text) if plain or _MILLISECONDS.fullmatch(text) else MAX_TIMEOUT_MS + 1
    if left_ms > MAX_TIMEOUT_MS:
        raise InvalidRequest(
            f"header {HEADER_TIMEOUT}: {text[:32]!r} is no whole number up to {MAX_TIMEOUT_MS}",
            param=HEADER_TIMEOUT,
        )
    return left_ms


def sender(message: Message, max_bytes: int = sys.maxsize) -> Sender:
    """Find the sender of a message that cannot be used, by its fields or else by its reply subject.

    Args:
        max_bytes: A longer one is not read, to bound the cost of refusing it.
    """
    fields = fields_of(message.data) if len(message.data) <= max_bytes else {}
    request_id, attempt, reply_to = (fields.get(name) for name in ("request_id", "attempt", "reply_to"))
    last = message.reply.rpartition(".")[2]
    candidates = (
        name for name in (request_id, last) if isinstance(name, str) and _REQUEST_ID.fullmatch(name)
    )
    caller = caller_of(message.subject)
    found = reply_to if isinstance(reply_to, str) and can_answer(reply_to, caller) else message.reply
    return Sender(
        request_id=next(candidates, "unknown"),
        attempt=attempt if type(attempt) is int and 0 <= attempt <= MAX_ATTEMPT else 0,
        reply_to=found if can_answer(found, caller) else "",
    )


def models_query(data: bytes) -> ListModels | None:
    """A query for the models in JSON; None if it is no object."""
    try:
        return msgspec.json.decode(data[: ListModels.max_bytes], type=ListModels)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
