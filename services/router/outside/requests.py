"""Restricts the requests of services outside, for which the broker vouches by tenant and user only. Pure.

What is refused here would let one outside service act as another, or see another's frames.
"""

from msgspec.structs import replace

from shared.bus.subject import can_answer
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest
from shared.messages.base import DEFAULT_TENANT
from shared.subjects import OutsideService


def confine(
    request: GenerateRequest, caller: OutsideService, max_priority: int, key_id: str = ""
) -> GenerateRequest:
    """The request without what the caller may not set.

    Its tenant is the caller's, its priority at most `max_priority`, and its key the caller's record. `kv`
    (for measurements), `note` (for callers that attach, which none outside may), `crashes` (a suspect is
    computed alone, which costs the others steps), `party` and `weight` (a user that names many, or a large
    one, would get the share of many) and `lost_group` are dropped.

    Raises:
        InvalidRequest: it names another tenant.
    """
    if request.tenant not in (DEFAULT_TENANT, caller.tenant):
        raise InvalidRequest(
            f"user {caller.user} is of tenant {caller.tenant!r} and the request names another one: leave "
            "`tenant` out",
            param="tenant",
        )
    return replace(
        request,
        tenant=caller.tenant,
        priority=min(request.priority, max_priority),
        kv="auto",
        note=b"",
        crashes=0,
        party="",
        weight=1.0,
        lost_group="",
        key_id=key_id,
    )


def check_reply_to(reply_to: str, caller: OutsideService | None) -> None:
    """Raises `InvalidRequest` unless answers may go there: frames elsewhere would reach another's client."""
    if not can_answer(reply_to, caller):
        inbox = f"{caller.user}'s inbox, `_INBOX.{caller.user}.>`" if caller else "your own inbox"
        raise InvalidRequest(
            f"reply_to: {reply_to[:64]!r} is no subject for answers; name one of {inbox}", param="reply_to"
        )
