"""An erased tenant's usage counts without its name, once, however the service is killed meanwhile."""

import random
from collections import Counter
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.usage.roller import UsageRoller
from services.kvstate.usage.sums import UsageSums
from services.kvstate.usage.tenant_usage import ErasedUsage, TenantUsage
from shared import codec
from shared.accounts.register import AccountRegister
from shared.errors import InvalidRequest, RyzError
from shared.messages import PriceRecord, StoredAccount, TenantRecord, UsageRecord, UsageRecords, UsageSum
from shared.messages.tenants.accounts import ERASED_TENANTS
from tests.kits.tenants.usage_streams import MemoryUsageStreams

NOON_MS = 1_690_000_000_000  # 2023-07-22 in UTC
DAY_MS = 86_400_000
KEY = "0123456789ab"


def register() -> AccountRegister:
    made = AccountRegister()
    records = (
        PriceRecord(model="demo", prompt=7_000_000, completion=11_000_000),
        TenantRecord(tenant="acme", time_zone="Pacific/Auckland"),
    )
    made.replace_all([StoredAccount(record=one, revision=1) for one in records], 1)
    return made


def record(name: str, tenant: str = "acme", **fields: Any) -> UsageRecord:
    given: dict[str, Any] = {
        "model": "demo", "prompt_tokens": 10, "completion_tokens": 5, "ended_ms": NOON_MS, "key_id": KEY,
    } | fields  # fmt: skip
    return UsageRecord(request_id=name, tenant=tenant, **given)


def roller(streams: MemoryUsageStreams) -> tuple[UsageRoller, UsageSums]:
    sums = UsageSums()
    made = UsageRoller(
        cast(Any, streams),
        sums,
        register(),
        UsageMetrics(CollectorRegistry()),
        keep_days=40_000,
        max_ids=10**4,
    )
    return made, sums


async def settle(streams: MemoryUsageStreams, made: UsageRoller) -> None:
    """Rolls until nothing is left of the ledger and of erasures."""
    for _ in range(1000):
        found = await made.roll_once()
        if not found and not made.has_more:
            return
    raise AssertionError("it does not end")


def totals(sums: list[UsageSum]) -> Counter[str]:
    """All counts, whatever the names."""
    found: Counter[str] = Counter()
    for one in sums:
        for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "money"):
            found[name] += getattr(one, name)
    return found


def by_day(sums: list[UsageSum]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for one in sums:
        found[one.day, one.model] += one.requests
    return found


def shown(sums: UsageSums) -> list[UsageSum]:
    return sums.page("", "", "", "")[0]


def names_in(streams: MemoryUsageStreams) -> set[str]:
    """Everything but marks of erasures that says `acme` or names its key or requests."""
    texts = [f"{one.subject} {one.data!r}" for one in streams.ledger]
    texts += [f"{subject} {codec.encode(stored)!r}" for subject, (_, stored) in streams.stored.items()]
    return {text for text in texts if "acme" in text or KEY in text or "secret" in text}


def fill(streams: MemoryUsageStreams, count: int = 40) -> None:
    for index in range(count):
        at_ms = NOON_MS + index % 4 * DAY_MS // 2
        streams.add(record(f"secret{index}", ended_ms=at_ms, model=("demo", "other")[index % 2]))
        streams.add(record(f"r{index}", "beta", ended_ms=at_ms, key_id=""))
        if index % 5 == 0:  # a run that was given up before
            streams.add(record(f"secret{index}", ended_ms=at_ms, completion_tokens=2, outcome="cut"))


async def test_counts_stay_and_names_go() -> None:
    streams = MemoryUsageStreams()
    fill(streams)
    one, sums = roller(streams)
    await settle(streams, one)
    before = shown(sums)
    assert names_in(streams)
    usage = TenantUsage(cast(Any, streams))
    await usage.begin_erasure("acme")
    assert (await usage.progress("acme")).left
    await settle(streams, one)
    assert {one.tenant for one in shown(sums)} == {ERASED_TENANTS, "beta"}
    assert totals(shown(sums)) == totals(before)
    assert by_day(shown(sums)) == by_day(before), "days are still those of the tenant's time zone"
    assert names_in(streams) == set()
    acme = [one for one in before if one.tenant == "acme"]
    assert await usage.progress("acme") == ErasedUsage(len(acme), 40 + 8)
    assert await usage.progress("acme") == ErasedUsage(), "a receipt says it once"
    again, copy = roller(streams)
    await settle(streams, again)
    assert shown(copy) == shown(sums)
    follower = UsageSums()
    await streams.refresh(follower)
    assert shown(follower) == shown(sums)


async def test_late_records_count_once_and_bring_no_name_back() -> None:
    streams = MemoryUsageStreams()
    streams.add(record("secret1"))
    streams.add(record("secret2", completion_tokens=3, outcome="cut"))
    one, sums = roller(streams)
    usage = TenantUsage(cast(Any, streams))
    await settle(streams, one)
    await usage.begin_erasure("acme")
    await settle(streams, one)
    for late in (
        record("secret1"),  # published again by its leader
        record("secret2", completion_tokens=8),  # the run that went on
        record("secret3"),
    ):
        streams.add(late)
    for restarted in (False, True):
        if restarted:
            one, sums = roller(streams)
        await settle(streams, one)
        assert {one.tenant for one in shown(sums)} == {ERASED_TENANTS}
        assert totals(shown(sums))["requests"] == 3
        assert totals(shown(sums))["completion_tokens"] == 5 + 8 + 5
        assert names_in(streams) == set()


async def test_a_tenant_that_goes_on_has_its_name_on_what_comes_after() -> None:
    streams = MemoryUsageStreams()
    streams.add(record("secret1"))
    one, sums = roller(streams)
    await settle(streams, one)
    await TenantUsage(cast(Any, streams)).begin_erasure("acme")
    await settle(streams, one)
    future = 4_000_000_000_000
    streams.add(record("new1", ended_ms=future))
    streams.add(record("secret2"))  # late, before and behind records that stay
    streams.add(record("new2", ended_ms=future))
    await settle(streams, one)
    for restarted in (False, True):
        if restarted:
            one, sums = roller(streams)
            await settle(streams, one)
        requests = {one.tenant: one.requests for one in shown(sums)}
        assert requests == {ERASED_TENANTS: 2, "acme": 2}
        kept = [
            codec.decode(one.data, UsageRecords).records for one in streams.ledger if "acme" in one.subject
        ]
        assert {one.request_id for records in kept for one in records} == {"new1", "new2"}


@pytest.mark.parametrize("seed", range(60))
async def test_kills_in_the_midst_count_nothing_twice(seed: int) -> None:
    """Two replicas are killed at any step and begin anew while records, and copies of them, come in."""
    order = random.Random(seed)
    streams = MemoryUsageStreams(at_once=order.choice((3, 7, 50)))
    fill(streams, 20)
    calm = MemoryUsageStreams()
    fill(calm, 20)
    erased = order.randint(0, 6)
    streams.fails = lambda: order.random() < rate
    rate = 0.05
    made = [roller(streams)[0] for _ in range(order.choice((1, 1, 2)))]
    for step in range(60):
        if step == erased:
            rate = 0.0
            await TenantUsage(cast(Any, streams)).begin_erasure("acme")
            rate = 0.05
        if step % 7 == 3:
            late = record(f"secret{step}", completion_tokens=6)
            streams.add(late)
            calm.add(late)
        index = order.randrange(len(made))
        try:
            await made[index].roll_once()
        except RyzError:
            if order.random() < 0.5:
                made[index] = roller(streams)[0]
    rate = 0.0
    last, sums = roller(streams)
    await settle(streams, last)
    oracle, wanted = roller(calm)
    await settle(calm, oracle)
    assert totals(shown(sums)) == totals(shown(wanted))
    assert by_day(shown(sums)) == by_day(shown(wanted))
    assert names_in(streams) == set()
    assert (await TenantUsage(cast(Any, streams)).progress("acme")).records >= 24


async def test_the_name_of_what_was_erased_is_no_tenant() -> None:
    with pytest.raises(InvalidRequest, match="has no data"):
        await TenantUsage(cast(Any, MemoryUsageStreams())).begin_erasure(ERASED_TENANTS)
