"""Decides whether a change of tenants, keys and prices may be made, and what is stored then. Pure."""

from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from services.kvstate.accounts.table import AccountTable
from shared.bus.accounts import ACCOUNTS
from shared.errors import AccountNotFound, Conflict, InvalidRequest, RateLimited
from shared.messages import (
    AccountChange,
    AccountRecord,
    AccountRules,
    KeyRecord,
    PriceRecord,
    Scopes,
    StoredAccount,
    TenantRecord,
)
from shared.messages.base import DEFAULT_TENANT
from shared.messages.tenants.accounts import (
    ANY_REVISION,
    ERASED_TENANTS,
    MAX_KEYS,
    MAX_TENANTS,
    MIN_RECORD_DAYS,
    MIN_USAGE_DAYS,
)

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


def rules_before(record: AccountRecord | None, table: AccountTable) -> AccountRules | None:
    """The rules to store before a record; None: they stay as they are.

    The first key that is no admin's closes the API, and the first bus user closes routers to users without
    a record.
    """
    if not isinstance(record, KeyRecord) or record.scopes.admin or table.stored(record.name) is not None:
        return None
    rules = rules_of(table)
    if record.bus_user is not None:
        return None if rules.bus_users_listed else replace(rules, bus_users_listed=True)
    if rules.keys_required or any(_is_for_api(key) for key in table.all_keys()):
        return None
    return replace(rules, keys_required=True)


def rules_of(table: AccountTable) -> AccountRules:
    """The rules that hold."""
    stored = table.stored(RULES)
    record = AccountRules() if stored is None else stored.record
    assert isinstance(record, AccountRules)
    return record


def detail_of(record: AccountRecord | None) -> str:
    """What the audit log says of a record: all but its digest, or the hash of a password."""
    if record is None:
        return ""
    values = msgspec.to_builtins(record)
    values.pop("digest", None)
    if values.get("bus_user"):
        values["bus_user"].pop("password_hash", None)
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
                f"`ryz tenants delete {record.tenant} --with-keys`",
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
    if 0 < record.usage_days < MIN_USAGE_DAYS:
        raise InvalidRequest(
            f"usage is kept for {MIN_USAGE_DAYS} days or more, or 0 (as RYZ_USAGE_DAYS says): limits of "
            f"months rest on it, and {record.usage_days} days were given",
            param="usage_days",
        )
    if 0 < record.record_days < MIN_RECORD_DAYS:
        raise InvalidRequest(
            f"records of requests are kept for {MIN_RECORD_DAYS} days or more, or 0 (for 35 days): by them "
            "a repeated request counts once",
            param="record_days",
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


def _is_for_api(key: KeyRecord) -> bool:
    """Whether a key is one that requests to the API are made with."""
    return not key.scopes.admin and key.bus_user is None


def _user_of(key: KeyRecord) -> str:
    return "" if key.bus_user is None else key.bus_user.user


def _check_bus_user(record: KeyRecord, table: AccountTable) -> None:
    user = _user_of(record)
    if not user:
        return
    if user in ACCOUNTS:
        raise Conflict(
            f"'{user}' is a user that every broker of ours has: choose another name", reason="account_exists"
        )
    if record.scopes != Scopes():
        raise InvalidRequest(
            "models, APIs, `read_only` and `admin` are of keys: a bus user may do what its tenant may"
            " on the bus",
            param="scopes",
        )
    if any(key.key_id != record.key_id and _user_of(key) == user for key in table.all_keys()):
        raise Conflict(
            f"there is a bus user {user} already: `ryz keys revoke {user}` removes it",
            reason="account_exists",
        )


def _checked_key(
    record: KeyRecord, found: StoredAccount | None, table: AccountTable, now_s: int
) -> KeyRecord:
    _check_bus_user(record, table)
    if found is not None:
        assert isinstance(found.record, KeyRecord)
        if _user_of(record) != _user_of(found.record):
            raise InvalidRequest(
                f"{_shown(record.name)} stays what it is, a key or that bus user: make another one",
                param="put",
            )
        same = record.bus_user is not None or record.digest == found.record.digest
        if record.tenant != found.record.tenant or not same:
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
