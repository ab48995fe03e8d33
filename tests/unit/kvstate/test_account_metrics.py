"""The gauges of tenants and keys."""

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from services.kvstate.accounts.metrics import AccountCollector
from shared.accounts.register import AccountRegister
from shared.messages import (
    AccountChanged,
    AccountRecord,
    AccountRules,
    BusUserTerms,
    KeyRecord,
    Scopes,
    StoredAccount,
    TenantRecord,
)


def key(letter: str, tenant: str = "default", *, expires_s: int = 0, admin: bool = False) -> KeyRecord:
    scopes = Scopes(admin=admin)
    return KeyRecord(key_id=letter * 12, digest=bytes(32), tenant=tenant, expires_s=expires_s, scopes=scopes)


def user(letter: str, *, suspended: bool = False) -> KeyRecord:
    terms = BusUserTerms(user=letter, password_hash="$2a$05$" + "a" * 53, suspended=suspended)
    return replace(key(letter, "acme"), bus_user=terms)


def test_tenants_and_keys_are_counted_by_state() -> None:
    register, registry, now = AccountRegister(), CollectorRegistry(), [1_000.0]
    registry.register(AccountCollector(register, lambda: now[0]))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ryz_kvstate_{name}", labels)

    assert value("tenants", state="active") is None, "nothing was read: nothing is known"

    records: list[AccountRecord] = [
        TenantRecord(tenant="acme"), TenantRecord(tenant="late", suspended=True),
        AccountRules(keys_required=True),
        key("a", "acme"), key("b", "acme", expires_s=2_000), key("c", "late"), key("d", admin=True),
        user("e"), user("f", suspended=True),
    ]  # fmt: skip
    register.replace_all([StoredAccount(record=one, revision=n) for n, one in enumerate(records, 1)], 9)
    assert [value("tenants", state=state) for state in ("active", "suspended")] == [1, 1]
    states = ("valid", "expired", "suspended")
    assert [value("keys", kind="tenant", state=state) for state in states] == [2, 0, 1]
    assert [value("keys", kind="admin", state=state) for state in states] == [1, 0, 0]
    assert [value("keys", kind="bus_user", state=state) for state in states] == [1, 0, 1]
    assert value("keys_required") == 1

    now[0] = 2_000.0
    register.apply(AccountChanged(before=9, version=10, removed=f"key.{'d' * 12}"))
    assert [value("keys", kind="tenant", state=state) for state in states] == [1, 1, 1]
    assert [value("keys", kind="admin", state=state) for state in states] == [0, 0, 0]
