"""The parts of a generation that no body gives: its session, its seed, the key under which it counts once."""

import random
from collections.abc import Sequence

import msgspec

from services.gateway.admission.caller import Caller
from services.gateway.admission.request_headers import RawHeaders, session_mode
from services.gateway.answering.intake.idempotency import IdempotentCall
from services.gateway.answering.intake.session_conditions import with_conditions
from shared.identity import new_session_id, request_root
from shared.messages import GenerateRequest, SessionRef


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


def in_session(
    request: GenerateRequest,
    headers: RawHeaders,
    must_exist: bool | None,
    once: IdempotentCall | None,
    root_key: bytes,
) -> GenerateRequest:
    """A conversation's request with its session; if the caller named none, with a new one.

    Args:
        request: Has messages, and the session that the caller named.
        headers: Headers of the call, which may set conditions.
        must_exist: The condition in the body that the session exists; None: there is none.
        once: What its `Idempotency-Key` says, if it has one.
        root_key: The secret behind new session ids; see `root_key.py`.

    Raises:
        InvalidRequest: A header is wrong; names it.
    """
    session = with_conditions(request.session, headers, must_exist, request.messages or [])
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
    return request
