"""Which changes of tenants, keys and prices may be made."""

from typing import Any

import pytest
from msgspec.structs import replace

from services.kvstate.accounts import rules
from services.kvstate.accounts.table import AccountTable
from shared.errors import AccountNotFound, Conflict, InvalidRequest, RateLimited
from shared.messages import (
    AccountChange,
    AccountRules,
    BusUserTerms,
    KeyRecord,
    PriceRecord,
    Scopes,
    TenantRecord,
)

ACME = TenantRecord(tenant="acme")
KEY = KeyRecord(key_id="0123456789ab", tenant="acme", digest=bytes(32))
ADMIN = KeyRecord(key_id="ba9876543210", digest=bytes(32), scopes=Scopes(admin=True))


def table(*records: Any) -> AccountTable:
    made = AccountTable()
    for revision, record in enumerate(records, 1):
        made.put(record, revision)
    return made


def put(record: Any, expected: int = -1) -> AccountChange:
    return AccountChange(actor="x", put=record, expected=expected)


def test_the_service_says_when_a_record_was_made() -> None:
    assert rules.checked(put(replace(ACME, created_s=5)), table(), 90) == replace(ACME, created_s=90)
    known = replace(ACME, created_s=90)
    assert rules.checked(put(replace(ACME, weight=2.0)), table(known), 100) == replace(known, weight=2.0)
    made = rules.checked(put(KEY), table(ACME), 90)
    assert made == replace(KEY, created_s=90)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", "America/New_York", "Asia/Kathmandu"])
def test_time_zones(zone: str) -> None:
    assert rules.checked(put(replace(ACME, time_zone=zone)), table(), 1) is not None


@pytest.mark.parametrize(
    "zone", ["Europe", "Nowhere", "/etc/passwd", "../x", "Europe/Berlin ", "a\0b", "\udcff"]
)
def test_what_is_no_time_zone(zone: str) -> None:
    with pytest.raises(InvalidRequest, match="no time zone") as refused:
        rules.checked(put(replace(ACME, time_zone=zone)), table(), 1)
    assert refused.value.data["param"] == "time_zone"


def test_usage_is_kept_for_more_than_a_month() -> None:
    for days in (0, 36, 3650):
        assert rules.checked(put(replace(ACME, usage_days=days)), table(), 1) is not None
    for days in (1, 35):
        with pytest.raises(InvalidRequest, match="36 days or more") as refused:
            rules.checked(put(replace(ACME, usage_days=days)), table(), 1)
        assert refused.value.data["param"] == "usage_days"


def test_records_of_requests_are_kept_for_longer_than_a_repeated_one_may_come() -> None:
    for days in (0, 2, 35):
        assert rules.checked(put(replace(ACME, record_days=days)), table(), 1) is not None
    with pytest.raises(InvalidRequest, match="2 days or more") as refused:
        rules.checked(put(replace(ACME, record_days=1)), table(), 1)
    assert refused.value.data["param"] == "record_days"


def test_keys_of_the_default_tenant_need_no_record() -> None:
    assert rules.checked(put(replace(KEY, tenant="default")), table(), 1) is not None
    with pytest.raises(AccountNotFound, match="ryz tenants create acme"):
        rules.checked(put(KEY), table(), 1)
    assert rules.checked(put(replace(KEY, label="new")), table(KEY), 1) is not None, (
        "it has outlived its tenant"
    )


@pytest.mark.parametrize(
    "change", [{"tenant": "default"}, {"digest": b"x" * 32}, {"scopes": Scopes(admin=True)}]
)
def test_what_a_key_keeps(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="make another one"):
        rules.checked(put(replace(KEY, **change)), table(ACME, KEY), 1)


def test_revisions() -> None:
    known = table(ACME)
    assert rules.checked(put(ACME, expected=1), known, 1) is not None
    for expected, said in ((0, "already"), (2, "changed since")):
        with pytest.raises(Conflict, match=said):
            rules.checked(put(ACME, expected=expected), known, 1)
    with pytest.raises(Conflict, match="changed since"):
        rules.checked(put(ACME, expected=1), table(), 1)


def test_a_record_of_a_newer_release_is_not_overwritten() -> None:
    known = table()
    known.put_unread(ACME.name, 1)
    with pytest.raises(Conflict, match="newer release"):
        rules.checked(put(ACME), known, 1)


def test_removals() -> None:
    assert rules.checked(AccountChange(actor="x", remove=ACME.name), table(ACME), 1) is None
    assert rules.checked(AccountChange(actor="x", remove=KEY.name), table(ACME, KEY), 1) is None
    with pytest.raises(Conflict, match="has 1 key"):
        rules.checked(AccountChange(actor="x", remove=ACME.name), table(ACME, KEY), 1)
    with pytest.raises(AccountNotFound, match="no price of demo"):
        rules.checked(AccountChange(actor="x", remove="price.demo"), table(), 1)


def test_there_may_be_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_TENANTS", "MAX_KEYS", "MAX_PRICES"):
        monkeypatch.setattr(rules, name, 1)
    full = table(ACME, KEY, PriceRecord(model="demo"))
    for record in (TenantRecord(tenant="b"), ADMIN, PriceRecord(model="other")):
        with pytest.raises(RateLimited, match="as many as there may be"):
            rules.checked(put(record), full, 1)
    for known in (ACME, KEY, PriceRecord(model="demo", prompt=1)):
        assert rules.checked(put(known), full, 1) is not None, "what is there can be changed"


def test_the_first_key_that_is_no_admins_closes_the_api() -> None:
    assert rules.rules_before(KEY, table(ACME, ADMIN)) == AccountRules(keys_required=True)
    assert rules.rules_before(KEY, table(AccountRules(currency="EUR"))) == AccountRules(
        keys_required=True, currency="EUR"
    )
    assert rules.rules_before(ADMIN, table()) is None
    assert rules.rules_before(ACME, table()) is None
    assert rules.rules_before(KEY, table(AccountRules(keys_required=True))) is None
    other = replace(KEY, key_id="a" * 12)
    assert rules.rules_before(other, table(KEY, AccountRules())) is None, "it was opened again"


def test_the_audit_log_has_no_digests() -> None:
    detail = rules.detail_of(replace(KEY, label="ci"))
    assert '"label":"ci"' in detail
    assert "digest" not in detail
    assert rules.detail_of(None) == ""
    assert len(rules.detail_of(replace(KEY, scopes=Scopes(models=["m" * 100] * 256)))) == rules.MAX_DETAIL
    assert [rules.tenant_of(one) for one in (ACME, KEY, AccountRules(), None)] == ["acme", "acme", "", ""]


USER = KeyRecord(
    key_id="abcdefabcdef",
    tenant="acme",
    digest=bytes(32),
    bus_user=BusUserTerms(user="billing", password_hash="$2a$05$" + "a" * 53),
)


def test_the_first_bus_user_closes_routers_to_those_without_a_record_and_not_the_api() -> None:
    assert rules.rules_before(USER, table(ACME)) == AccountRules(bus_users_listed=True)
    assert rules.rules_before(USER, table(ACME, AccountRules(bus_users_listed=True))) is None
    assert rules.rules_before(KEY, table(ACME, USER)) == AccountRules(keys_required=True)


def test_bus_users_have_names_of_their_own() -> None:
    assert rules.checked(put(USER), table(ACME), 1) == replace(USER, created_s=1)
    other = replace(USER, key_id="bbbbbbbbbbbb")
    with pytest.raises(Conflict, match="ryz keys revoke billing") as refused:
        rules.checked(put(other), table(ACME, USER), 1)
    assert refused.value.data["reason"] == "account_exists"
    assert USER.bus_user is not None
    with pytest.raises(Conflict, match="every broker of ours has"):
        rules.checked(put(replace(USER, bus_user=replace(USER.bus_user, user="gateway"))), table(ACME), 1)
    with pytest.raises(AccountNotFound, match="ryz tenants create acme"):
        rules.checked(put(USER), table(), 1)


def test_a_bus_user_gets_another_password_and_stays_what_it_is() -> None:
    assert USER.bus_user is not None
    known = table(ACME, USER)
    rotated = replace(USER, digest=bytes(range(32)))
    assert rules.checked(put(rotated), known, 1) == rotated
    for changed in (replace(USER, bus_user=None), replace(USER, bus_user=replace(USER.bus_user, user="b"))):
        with pytest.raises(InvalidRequest, match="stays what it is"):
            rules.checked(put(changed), known, 1)
    with pytest.raises(InvalidRequest, match="keeps its tenant"):
        rules.checked(put(replace(USER, tenant="default")), known, 1)
    with pytest.raises(InvalidRequest, match="are of keys"):
        rules.checked(put(replace(USER, scopes=Scopes(read_only=True))), known, 1)


def test_the_audit_log_has_no_hash_of_a_password() -> None:
    assert "$2a$" not in rules.detail_of(USER)
    assert "billing" in rules.detail_of(USER)
