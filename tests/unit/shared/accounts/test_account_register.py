"""The copy of tenants, keys and prices: whole reads, single changes, and changes that are missing."""

import random

from shared.accounts.register import AccountRegister
from shared.messages import (
    AccountChanged,
    AccountRules,
    KeyRecord,
    Limits,
    PriceRecord,
    StoredAccount,
    TenantRecord,
)

ACME = TenantRecord(tenant="acme", limits=Limits(running=3))
KEY = KeyRecord(key_id="0123456789ab", tenant="acme", digest=bytes(32))
PRICE = PriceRecord(model="demo", prompt=7)
RULES = AccountRules(keys_required=True)
RECORDS = [
    StoredAccount(record=ACME, revision=1),
    StoredAccount(record=KEY, revision=2),
    StoredAccount(record=PRICE, revision=3),
    StoredAccount(record=RULES, revision=4),
]


def read() -> AccountRegister:
    register = AccountRegister()
    register.replace_all(RECORDS, 4)
    return register


def test_a_whole_read() -> None:
    register = read()
    assert register.is_current
    assert register.version == 4
    assert len(register) == 4
    assert register.tenant("acme") == ACME
    assert register.limits("acme") == ACME.limits
    assert register.key(KEY.key_id) == KEY
    assert register.rules == RULES
    assert register.price("demo") == register.price("demo:french") == PRICE
    assert register.tenant("other") is None
    assert register.key("") is None
    assert register.price("x") is None
    register.replace_all([], 5)
    assert not len(register)
    assert register.rules == AccountRules()
    assert register.key(KEY.key_id) is None


def test_changes_in_order() -> None:
    register = read()
    wider = StoredAccount(record=TenantRecord(tenant="acme", limits=Limits(running=9)), revision=5)
    assert register.apply(AccountChanged(before=4, version=5, put=wider))
    assert register.limits("acme") == Limits(running=9)
    assert register.apply(AccountChanged(before=5, version=6, removed=KEY.name))
    assert register.key(KEY.key_id) is None
    assert register.version == 6
    assert register.apply(AccountChanged(before=4, version=5, put=wider)), "an old one is known already"
    assert register.apply(AccountChanged(before=6, version=7, removed="rules"))
    assert register.rules == AccountRules()


def test_a_removed_key_is_gone_also_when_another_change_is_missing() -> None:
    register = read()
    assert not register.apply(AccountChanged(before=6, version=7, removed=KEY.name))
    assert register.key(KEY.key_id) is None
    assert not register.is_current
    assert register.version == 4, "the rest has to be read again"


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    register = read()
    newer = StoredAccount(record=PriceRecord(model="demo", prompt=9), revision=9)
    assert not register.apply(AccountChanged(before=8, version=9, put=newer))
    older = StoredAccount(record=PriceRecord(model="demo", prompt=8), revision=6)
    register.apply(AccountChanged(before=5, version=6, put=older))
    assert register.price("demo") == newer.record


def test_any_order_of_changes_ends_in_the_same_once_it_is_read() -> None:
    random.seed(7)
    for _ in range(50):
        register, truth, version = read(), {stored.record.name: stored for stored in RECORDS}, 4
        changes = []
        for _ in range(12):
            name, stored = random.choice(sorted(truth.items()))
            if random.random() < 0.3 and len(truth) > 1:
                del truth[name]
                changes.append(AccountChanged(before=version, version=version + 1, removed=name))
            else:
                truth[name] = StoredAccount(record=stored.record, revision=version + 1)
                changes.append(AccountChanged(before=version, version=version + 1, put=truth[name]))
            version += 1
        for change in changes:
            if random.random() < 0.8 and not register.apply(change):
                break
        if register.version != version:
            register.replace_all(truth.values(), version)
        assert {stored.record.name: stored for stored in map(register.stored, truth) if stored} == truth
        assert len(register) == len(truth)
