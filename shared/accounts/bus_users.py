"""Decides whether a bus user may do anything now: the broker knows its password longer than we know it. Pure.

Routers and gateways ask for each message, since the broker reads its file of passwords when it is told to.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from shared.accounts.keys import digest_of
from shared.accounts.register import AccountRegister
from shared.bus.accounts import OUTSIDE
from shared.errors import InvalidRequest, Unavailable
from shared.messages import KeyRecord
from shared.subjects import OutsideService

RETRY_S = 5.0


def check_bus_user(register: AccountRegister, caller: OutsideService, now_s: float) -> KeyRecord | None:
    """Returns the record of a bus user; None: it has none, and needs none.

    Args:
        register: Tenants and keys, as far as they are known.
        caller: The user and its tenant, as the broker vouches for them.
        now_s: Seconds since 1970.

    Raises:
        InvalidRequest: The user, or its tenant, may not do anything; `reason` says why.
        Unavailable: That is not known yet.
    """
    user = caller.user
    record = register.bus_user(user)
    if record is None and user != OUTSIDE:
        if not register.was_read:
            raise Unavailable(
                "bus users cannot be looked up: the KV state service does not answer; retry in a moment",
                reason="accounts_away",
                retry_after_s=RETRY_S,
            )
        if register.rules.bus_users_listed:
            raise _refusal("user_unknown", f"there is no bus user {user}: it was revoked, or never made")
    if record is not None:
        _check_record(record, caller, now_s)
    tenant = register.tenant(caller.tenant)
    if tenant is not None and tenant.suspended:
        raise _refusal("tenant_suspended", f"the tenant {caller.tenant!r} is suspended")
    return record


def users_let_in(register: AccountRegister, now_s: float) -> Iterable[KeyRecord]:
    """The bus users that the broker should let in."""
    for record in register.bus_users():
        try:
            check_bus_user(register, caller_of_record(record), now_s)
        except InvalidRequest:
            continue
        yield record


def caller_of_record(record: KeyRecord) -> OutsideService:
    """The caller that the subjects of a bus user name."""
    assert record.bus_user is not None
    return OutsideService(record.tenant, record.bus_user.user)


def with_password_hash(record: KeyRecord, password_hash: str) -> KeyRecord:
    """The record of a bus user with another password."""
    assert record.bus_user is not None
    terms = replace(record.bus_user, password_hash=password_hash)
    return replace(record, digest=digest_of(password_hash), bus_user=terms)


def _check_record(record: KeyRecord, caller: OutsideService, now_s: float) -> None:
    terms = record.bus_user
    if record.tenant != caller.tenant:
        raise _refusal(
            "user_tenant",
            f"the bus user {caller.user} is of tenant {record.tenant!r} now, and the broker has it as one of "
            f"{caller.tenant!r}: connect again, and have the broker read its users again",
        )
    if terms is not None and terms.suspended:
        raise _refusal("user_suspended", f"the bus user {caller.user} is suspended")
    if record.expires_s and now_s >= record.expires_s:
        raise _refusal("user_expired", f"the bus user {caller.user} has expired")


def _refusal(reason: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, reason=reason)
