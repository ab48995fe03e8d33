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
    assert rules.closes_api(KEY, table(ACME, ADMIN)) == AccountRules(keys_required=True)
    assert rules.closes_api(KEY, table(AccountRules(currency="EUR"))) == AccountRules(
        keys_required=True, currency="EUR"
    )
    assert rules.closes_api(ADMIN, table()) is None
    assert rules.closes_api(ACME, table()) is None
    assert rules.closes_api(KEY, table(AccountRules(keys_required=True))) is None
    other = replace(KEY, key_id="a" * 12)
    assert rules.closes_api(other, table(KEY, AccountRules())) is None, "it was opened again"


def test_the_audit_log_has_no_digests() -> None:
    detail = rules.detail_of(replace(KEY, label="ci"))
    assert '"label":"ci"' in detail
    assert "digest" not in detail
    assert rules.detail_of(None) == ""
    assert len(rules.detail_of(replace(KEY, scopes=Scopes(models=["m" * 100] * 256)))) == rules.MAX_DETAIL
    assert [rules.tenant_of(one) for one in (ACME, KEY, AccountRules(), None)] == ["acme", "acme", "", ""]
