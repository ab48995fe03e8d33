"""Decides whether a change of tenants, keys and prices may be made, and what is stored then. Pure."""

from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from services.kvstate.accounts.table import AccountTable
from shared.errors import AccountNotFound, Conflict, InvalidRequest, RateLimited
from shared.messages import (
    AccountChange,
    AccountRecord,
    AccountRules,
    KeyRecord,
    PriceRecord,
    StoredAccount,
    TenantRecord,
)
from shared.messages.base import DEFAULT_TENANT
from shared.messages.tenants.accounts import ANY_REVISION, ERASED_TENANTS, MAX_KEYS, MAX_TENANTS

RULES = AccountRules().name
MAX_PRICES = 10_000
MAX_DETAIL = 4096
_WORDS = {"tenant": "tenant", "key": "key", "price": "price of", "rules": "record"}


def checked(change: AccountChange, table: AccountTable, now_s: int) -> AccountRecord | None:
    """The record to store; None: that of `change.remove` is removed.

    Raises:
        InvalidRequest: The change makes no sense.
        AccountNotFound: There is no such record, or no such tenant for a key.
        Conflict: The record has another revision than the caller expects, or is there already; or a tenant
            has keys and cannot be removed.
        RateLimited: There are as many as there may be.
    """
    if (change.put is None) == (not change.remove):
        raise InvalidRequest("a change needs either `put` or `remove`", param="put")
    name = change.remove if change.put is None else change.put.name
    found = table.stored(name)
    _check_revision(change, name, found, taken=name in table.unread)
    if change.put is None:
        _check_removal(name, found, table)
        return None
    record = change.put
    if isinstance(record, TenantRecord):
        return _checked_tenant(record, found, table, now_s)
    if isinstance(record, KeyRecord):
        return _checked_key(record, found, table, now_s)
    if isinstance(record, PriceRecord) and found is None and table.count("price") >= MAX_PRICES:
        raise RateLimited(f"there are {MAX_PRICES} prices, as many as there may be", reason="price_limit")
    return record


def closes_api(record: AccountRecord | None, table: AccountTable) -> AccountRules | None:
    """The rules to store before a record: the first key that is no admin's closes the API."""
    if not isinstance(record, KeyRecord) or record.scopes.admin or table.stored(record.name) is not None:
        return None
    rules = rules_of(table)
    if rules.keys_required or any(not key.scopes.admin for key in table.all_keys()):
        return None
    return replace(rules, keys_required=True)


def rules_of(table: AccountTable) -> AccountRules:
    """The rules that hold."""
    stored = table.stored(RULES)
    record = AccountRules() if stored is None else stored.record
    assert isinstance(record, AccountRules)
    return record


def detail_of(record: AccountRecord | None) -> str:
    """What the audit log says of a record: all but its digest."""
    if record is None:
        return ""
    values = msgspec.to_builtins(record)
    values.pop("digest", None)
    return msgspec.json.encode(values).decode()[:MAX_DETAIL]


def tenant_of(record: AccountRecord | None) -> str:
    """Whose record it is; empty: that of none."""
    return record.tenant if isinstance(record, TenantRecord | KeyRecord) else ""


def _check_revision(change: AccountChange, name: str, found: StoredAccount | None, *, taken: bool) -> None:
    if taken:
        raise Conflict(
            f"{_shown(name)} was written by a newer release, which this one cannot read",
            reason="newer_release",
        )
    if change.expected == ANY_REVISION:
        return
    if change.expected == 0 and found is not None:
        raise Conflict(f"there is a {_shown(name)} already", reason="account_exists")
    if change.expected and (found is None or found.revision != change.expected):
        raise Conflict(
            f"{_shown(name)} has changed since it was read: read it again", reason="changed_meanwhile"
        )


def _check_removal(name: str, found: StoredAccount | None, table: AccountTable) -> None:
    if found is None:
        raise AccountNotFound(f"there is no {_shown(name)}", reason="account_not_found")
    record = found.record
    if isinstance(record, TenantRecord):
        keys = sum(key.tenant == record.tenant for key in table.all_keys())
        if keys:
            raise Conflict(
                f"{_shown(name)} has {keys} {'key' if keys == 1 else 'keys'}: revoke them first, or "
                "`ryz tenants delete --with-keys`",
                reason="tenant_has_keys",
            )


def _checked_tenant(
    record: TenantRecord, found: StoredAccount | None, table: AccountTable, now_s: int
) -> TenantRecord:
    if record.tenant == ERASED_TENANTS:
        raise InvalidRequest(
            f"{ERASED_TENANTS!r} is the name for the usage of erased tenants: choose another one",
            param="tenant",
        )
    try:
        ZoneInfo(record.time_zone)
    except (KeyError, ValueError, OSError):  # of names that are paths of directories, among others
        raise InvalidRequest(
            f"{record.time_zone!r} is no time zone of the IANA data base, such as Europe/Berlin",
            param="time_zone",
        ) from None
    if found is None:
        if table.count("tenant") >= MAX_TENANTS:
            raise RateLimited(
                f"there are {MAX_TENANTS} tenants, as many as there may be", reason="tenant_limit"
            )
        return replace(record, created_s=now_s)
    assert isinstance(found.record, TenantRecord)
    return replace(record, created_s=found.record.created_s)


def _checked_key(
    record: KeyRecord, found: StoredAccount | None, table: AccountTable, now_s: int
) -> KeyRecord:
    if found is not None:
        assert isinstance(found.record, KeyRecord)
        if (record.tenant, record.digest) != (found.record.tenant, found.record.digest):
            raise InvalidRequest(
                f"{_shown(record.name)} keeps its tenant and its text: make another one", param="put"
            )
        if record.scopes.admin != found.record.scopes.admin:
            raise InvalidRequest(
                f"{_shown(record.name)} stays {'an' if found.record.scopes.admin else 'no'} admin's: make "
                "another one",
                param="put",
            )
        return replace(record, created_s=found.record.created_s)
    tenant = TenantRecord(tenant=record.tenant).name
    if record.tenant != DEFAULT_TENANT and table.stored(tenant) is None:
        raise AccountNotFound(
            f"there is no tenant {record.tenant!r}: `ryz tenants create {record.tenant}` makes it",
            reason="no_tenant",
        )
    if table.count("key") >= MAX_KEYS:
        raise RateLimited(
            f"there are {MAX_KEYS} keys, as many as there may be: revoke one", reason="key_limit"
        )
    return replace(record, created_s=now_s)


def _shown(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"{_WORDS.get(kind, 'record')} {rest or kind}"
