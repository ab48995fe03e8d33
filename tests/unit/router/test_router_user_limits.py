"""What a bus user may do by its record: its limits, and whether it may do anything."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from shared.messages import (
    AccountChanged,
    AccountRecord,
    AccountRules,
    BusUserTerms,
    KeyRecord,
    Limits,
    StoredAccount,
    TenantRecord,
)
from tests.kits.memory_bus import MemoryBus
from tests.unit.router.test_router_outside_gate import SUBJECT, World, packed

HASH = "$2a$05$" + "a" * 53
TERMS = BusUserTerms(user="u", password_hash=HASH, max_rps=2.0)
USER = KeyRecord(key_id="0123456789ab", tenant="t", digest=bytes(32), bus_user=TERMS)
LISTED = AccountRules(bus_users_listed=True)
ASKED = packed(reply_to="_INBOX.u.f")


def hold(world: World, *records: AccountRecord) -> None:
    stored = [StoredAccount(record=one, revision=number) for number, one in enumerate(records, 1)]
    world.context.state.accounts.replace_all(stored, len(stored))


async def test_the_rate_is_that_of_the_record(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus).start()
    hold(world, USER, LISTED)
    await world.ask(10, ASKED)
    assert world.reasons().count("user_rate") == 10 - 4, "two seconds' worth"


async def test_limits_of_a_record_are_within_those_of_its_tenant(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus).start()
    limited = replace(USER, limits=Limits(requests_per_minute=7), bus_user=replace(TERMS, max_rps=None))
    hold(world, limited, LISTED)
    party = world.leases.party("t", USER.key_id)
    assert [lease.pool.limit for lease in party.leases] == [7]
    world.leases.is_local = True  # without a store the limit is counted here
    for lease in party.leases:
        lease.take_local(time.monotonic(), time.time_ns() // 1_000_000, 1)
    await world.ask(9, ASKED)
    assert world.reasons().count("key_requests_per_minute") == 2


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ((replace(USER, bus_user=replace(TERMS, suspended=True)), LISTED), "user_suspended"),
        ((replace(USER, expires_s=1), LISTED), "user_expired"),
        ((replace(USER, tenant="other"), LISTED), "user_tenant"),
        ((LISTED,), "user_unknown"),
        ((USER, LISTED, TenantRecord(tenant="t", suspended=True)), "tenant_suspended"),
        ((TenantRecord(tenant="t", suspended=True),), "tenant_suspended"),
    ],
)
async def test_who_is_refused(memory_bus: MemoryBus, records: Any, reason: str) -> None:
    world = await World(memory_bus).start()
    hold(world, *records)
    await world.ask(1, ASKED)
    assert world.reasons() == [reason]
    hold(world, USER, LISTED)
    await world.ask(1, ASKED)
    assert world.reasons()[1:] == ["no_group"]


async def test_a_revoked_user_is_refused_at_once(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus).start()
    hold(world, USER, LISTED)
    gone = AccountChanged(before=2, version=3, removed=USER.name)
    world.context.state.accounts.apply(gone)
    await world.ask(1, ASKED)
    assert world.reasons() == ["user_unknown"]


async def test_users_of_a_broker_without_records_are_let_in(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus).start()
    await world.ask(1, ASKED)
    assert world.reasons() == ["no_group"]


async def test_nobody_but_outside_is_let_in_before_the_records_were_read(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus, accounts_read=False).start()
    await world.ask(1, ASKED)
    assert world.reasons() == ["accounts_away"]
    await world.outside.subscribe("_INBOX.outside.>", world.hear)
    await world.ask(1, packed(reply_to="_INBOX.outside.f"), SUBJECT.replace(".t.u.", ".outside.outside."))
    assert world.reasons()[1:] == ["no_group"]
