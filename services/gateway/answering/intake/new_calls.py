"""What a generation gets beside its text: key, seed, session and its conditions, priority, party. Pure.

`Idempotency-Key`: a call that is sent again gets the answer of the first one. Each tenant has keys of its
own, and every gateway derives the same from a key: the name by which leaders and session records know the
call, the seed of its answer, and the id of a session that is made for it. Conditions for a turn of a session
are read here; the leader, which knows the session, checks them.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from services.gateway.admission.caller import BackgroundCall, Caller
from services.gateway.admission.request_headers import SESSION_HEADERS, RawHeaders, session_mode
from services.gateway.answering.left_out import LeftOut
from services.gateway.settings import SessionFrom
from shared.errors import InvalidRequest
from shared.identity import is_made_session_id, named_root, new_session_id, request_root
from shared.messages import ChatMessage, GenerateRequest, SessionRef
from shared.messages.base import BACKGROUND_PRIORITY

_VERSION = re.compile(rb'(?:W/)?"?(\d{1,15})"?')
_YES_OR_NO = {b"true": True, b"1": True, b"false": False, b"0": False}
IDEMPOTENCY_HEADER = b"idempotency-key"
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_OF_THE_CALL = (*SESSION_HEADERS, b"x-session-mode")
_LOWEST, _HIGHEST = BACKGROUND_PRIORITY + 1, 10  # of requests; a higher one goes first


def with_conditions(
    session: SessionRef | None, headers: RawHeaders, in_body: bool | None, messages: list[ChatMessage]
) -> SessionRef | None:
    """Adds the conditions of a turn to its session.

    An id that a gateway made belongs to a session that existed. If a turn sends only its new messages and the
    session is missing, it was lost or has expired. So such a turn gets the condition that the session exists.

    Raises:
        InvalidRequest: A header cannot be read, or there is a condition and no session.
    """
    must_exist = _flag(headers, in_body)
    if_version = _version(headers)
    if headers.get(b"if-match", b"").strip() == b"*":
        must_exist = True
    if session is None:
        if must_exist or if_version >= 0:
            raise InvalidRequest(
                "`If-Match`, `If-None-Match` and `X-Session-Must-Exist` need a session of chat completions: "
                "send its id in `X-Session-Id`",
                param="x-session-id",
            )
        return None
    if must_exist is None:
        only_new = all(message.role != "assistant" for message in messages)
        appends = only_new if session.mode == "auto" else session.mode == "append"
        must_exist = appends and is_made_session_id(session.session_id)
    if not must_exist and if_version < 0:
        return session
    return replace(session, must_exist=must_exist, if_version=if_version)


def _flag(headers: RawHeaders, in_body: bool | None) -> bool | None:
    raw = headers.get(b"x-session-must-exist")
    if raw is None:
        return in_body
    flag = _YES_OR_NO.get(raw.strip().lower())
    if flag is None:
        raise InvalidRequest("`x-session-must-exist` is true or false", param="x-session-must-exist")
    return flag


def _version(headers: RawHeaders) -> int:
    """The version that the session must have; 0 if it must not exist, -1 for any."""
    absent = headers.get(b"if-none-match")
    raw = headers.get(b"if-match")
    if absent is not None:
        if absent.strip() != b"*" or raw is not None:
            raise InvalidRequest(
                "`If-None-Match` is * for a turn whose session must not exist, without `If-Match` beside it; "
                "a version that the session must have stands in `If-Match`",
                param="if-none-match",
            )
        return 0
    if raw is None or raw.strip() == b"*":
        return -1
    found = _VERSION.fullmatch(raw.strip())
    if found is None:
        raise InvalidRequest(
            '`If-Match` is the version of the session in `X-Ryz-Session`, such as "3", or *',
            param="if-match",
        )
    return int(found[1])


@dataclass(frozen=True, slots=True)
class IdempotentCall:
    """A call with an `Idempotency-Key`.

    Attributes:
        name: The name of the call, unique over all tenants.
        digest: The digest of what it asks for.
    """

    name: str
    digest: str

    @property
    def seed(self) -> int:
        """The seed of the answer if the caller names none, so that computing it again gives the same."""
        return int.from_bytes(blake2b(self.name.encode(), digest_size=8, person=b"seed").digest()) >> 1

    def session_id(self, root: str) -> str:
        """The id of the session that is made for the call, in the form of all made ids."""
        made = blake2b(self.name.encode(), digest_size=8, person=b"session").hexdigest()
        return f"s-{root}-{made}"


def once_of(headers: RawHeaders, tenant: str, path: str, raw: bytes) -> IdempotentCall | None:
    """Reads the key of a call.

    Args:
        headers: Headers of the call; those that choose its session are part of what it asks for.
        tenant: Whose key it is.
        path: The route.
        raw: The body.

    Returns:
        None if the call has no key.

    Raises:
        InvalidRequest: The key is not valid.
    """
    key = headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            "`Idempotency-Key` needs 1 to 255 printable ASCII characters without spaces",
            param="idempotency-key",
        )
    asked = blake2b(raw, digest_size=16)
    for part in (path.encode(), *(headers.get(name, b"") for name in _OF_THE_CALL)):
        asked.update(len(part).to_bytes(4) + part)
    name = blake2b(f"{len(tenant)}:{tenant}".encode() + key, digest_size=16)
    return IdempotentCall(name.hexdigest(), asked.hexdigest())


def seed_of(once: IdempotentCall | None) -> int:
    """The seed of an answer whose caller names none."""
    if once is not None:
        return once.seed
    return random.getrandbits(63)  # no secret: it decides what is drawn


def count_once(request: GenerateRequest, once: IdempotentCall | None) -> GenerateRequest:
    """The request under the name of its call, if it has an `Idempotency-Key`."""
    if once is None:
        return request
    return msgspec.structs.replace(request, call_key=once.name, call_digest=once.digest)


def counted_for(requests: Sequence[GenerateRequest], caller: Caller, weight: float) -> list[GenerateRequest]:
    """The requests with the party and the key that they count for, and the weight of their tenant."""
    party = "" if caller.party == caller.tenant else caller.party
    return [
        msgspec.structs.replace(request, party=party, key_id=caller.key_id, weight=weight)
        for request in requests
    ]


def root_from(
    session_from: SessionFrom, tenant: str, cache_key: str | None, user: str | None, root_key: bytes = b""
) -> str:
    """Returns the root hash that fields of a body give a request without a session.

    Args:
        session_from: What counts; see `GatewaySettings`.
        tenant: Whose request it is; another tenant's equal field gives another root.
        cache_key: The field `prompt_cache_key`.
        user: The field `user`, or its counterpart.
        root_key: As in `in_session`; needed where callers see the root.

    Returns:
        Empty: how the conversation begins decides.
    """
    if cache_key and session_from != "conversation":
        return named_root(tenant, "prompt_cache_key", cache_key, root_key)
    if user and session_from == "user":
        return named_root(tenant, "user", user, root_key)
    return ""


def in_session(
    request: GenerateRequest,
    headers: RawHeaders,
    must_exist: bool | None,
    once: IdempotentCall | None,
    root_key: bytes,
    *,
    root: str = "",
) -> GenerateRequest:
    """A conversation's request with its session; if the caller named none, with a new one.

    Args:
        request: Has messages, and the session that the caller named.
        headers: Headers of the call, which may set conditions.
        must_exist: The condition in the body that the session exists; None: there is none.
        once: What its `Idempotency-Key` says, if it has one.
        root_key: The secret behind new session ids; see `root_key.py`.
        root: The root of a new session's id. Empty: that of the conversation.

    Raises:
        InvalidRequest: A header is wrong; names it.
    """
    session = with_conditions(request.session, headers, must_exist, request.messages or [])
    if session is None:
        root, mode = root or request_root(request, root_key), session_mode(headers)
        if once is None:
            session = SessionRef(session_id=new_session_id(root), given=False, mode=mode)
        else:  # the same id for the same call, whose record may exist already
            session = SessionRef(session_id=once.session_id(root), mode=mode)
    if session is not request.session:
        request = msgspec.structs.replace(request, session=session)
    if session.given and once is None:
        request = msgspec.structs.replace(request, confirms=True)
    return request


def priority_of(given: int | None) -> int:
    """The priority of a request for the value in its body."""
    return 0 if given is None else max(_LOWEST, min(-given, _HIGHEST))


def limit_priority(
    requests: Sequence[GenerateRequest], most: int
) -> tuple[list[GenerateRequest], list[LeftOut]]:
    """The requests with a priority of `most` at most, and what their caller is told of it."""
    if all(request.priority <= most for request in requests):
        return list(requests), []
    limited = LeftOut("priority", why=f"limited to {-most}")
    return [msgspec.structs.replace(one, priority=min(one.priority, most)) for one in requests], [limited]


def in_background(requests: Sequence[GenerateRequest], call: BackgroundCall | None) -> list[GenerateRequest]:
    """The generations of a call as they are to run; those of an interactive call as they are.

    Background calls are requests of batches, which interactive requests go before. They take nothing of their
    tenant's rate and make no session. Their seed follows from their name: computed twice, such a call has the
    same answer, and its usage counts once.
    """
    if call is None:
        return list(requests)
    changed = []
    for index, request in enumerate(requests):
        made = blake2b(f"{call.name}:{index}".encode(), digest_size=8, person=b"background").digest()
        seed = request.sampling.seed if call.seeded else int.from_bytes(made) >> 1
        session = request.session if request.session is not None and request.session.given else None
        sampling = replace(request.sampling, seed=seed)
        changed.append(
            replace(
                request,
                priority=BACKGROUND_PRIORITY,
                sampling=sampling,
                session=session,
                usage_id=f"{call.name}-{index:x}" if index else call.name,
            )
        )
    return changed
