"""Sums of usage are those of each request once, however the ledger repeats it and the rollers break down."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.kvstate.usage.metrics import MAX_MODELS, UsageMetrics
from services.kvstate.usage.roller import UsageRoller
from services.kvstate.usage.stored_sums import NOTHING, StoredSum
from services.kvstate.usage.sums import PAGE, UsageSums
from shared.accounts.register import AccountRegister
from shared.errors import RyzError
from shared.messages import (
    AccountRecord,
    PriceRecord,
    StoredAccount,
    TenantRecord,
    UsageRecord,
    UsageSum,
)
from tests.kits.tenants.usage_streams import MemoryUsageStreams

NOON_MS = 1_790_000_000_000  # 2026-09-21 in UTC


def record(name: str, **fields: Any) -> UsageRecord:
    given: dict[str, Any] = {
        "model": "demo",
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "ended_ms": NOON_MS,
    } | fields
    return UsageRecord(request_id=name, **given)


def register(*records: AccountRecord) -> AccountRegister:
    made = AccountRegister()
    made.replace_all([StoredAccount(record=one, revision=1) for one in records], 1)
    return made


def roller(
    streams: MemoryUsageStreams, known: AccountRegister | None = None, *, max_ids: int = 1000
) -> tuple[UsageRoller, UsageSums]:
    sums = UsageSums()
    metrics = UsageMetrics(CollectorRegistry())
    made = UsageRoller(
        cast(Any, streams), sums, known or AccountRegister(), metrics, keep_days=40_000, max_ids=max_ids
    )
    return made, sums


async def rolled(streams: MemoryUsageStreams, known: AccountRegister | None = None) -> list[UsageSum]:
    """What a new roller has when it has read everything."""
    one, sums = roller(streams, known)
    while await one.roll_once():
        pass
    return sums.page("", "", "", "")[0]


def tokens_of(sums: Sequence[UsageSum]) -> tuple[int, int, int]:
    return (
        sum(one.requests for one in sums),
        sum(one.prompt_tokens for one in sums),
        sum(one.completion_tokens for one in sums),
    )


async def test_copies_of_a_record_count_once() -> None:
    streams = MemoryUsageStreams()
    for name in ("a", "b", "a", "a"):
        streams.add(record(name))
    assert tokens_of(await rolled(streams)) == (2, 20, 10)


async def test_one_id_of_two_tenants_is_two_requests() -> None:
    streams = MemoryUsageStreams()
    for tenant in ("one", "two"):
        streams.add(record("a", tenant=tenant))
    assert tokens_of(await rolled(streams)) == (2, 20, 10)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
async def test_the_most_complete_record_of_a_request_counts(order: tuple[int, ...]) -> None:
    """A run that was given up by mistake ends after, or before, the one that went on."""
    runs = [
        record("a", completion_tokens=2, outcome="cut"),
        record("a", completion_tokens=3, outcome="failed"),
        record("a", completion_tokens=5),
    ]
    streams = MemoryUsageStreams()
    for index in order:
        streams.add(runs[index])
    assert tokens_of(await rolled(streams)) == (1, 10, 5)


async def test_days_are_those_of_the_tenant() -> None:
    known = register(
        TenantRecord(tenant="ny", time_zone="America/New_York"),
        TenantRecord(tenant="au", time_zone="Pacific/Auckland"),
        TenantRecord(tenant="odd", time_zone="No/Where"),
    )
    midnight = 1_790_035_200_000  # 2026-09-22 00:00 in UTC
    streams = MemoryUsageStreams()
    for tenant in ("ny", "au", "odd"):
        streams.add(record("before", tenant=tenant, ended_ms=midnight - 1))
        streams.add(record("after", tenant=tenant, ended_ms=midnight))
    days = {(one.tenant, one.day): one.requests for one in await rolled(streams, known)}
    assert days == {
        ("ny", "2026-09-21"): 2,
        ("au", "2026-09-22"): 2,
        ("odd", "2026-09-21"): 1,
        ("odd", "2026-09-22"): 1,
    }


async def test_a_tenants_days_of_usage_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    noon_s = NOON_MS / 1000
    monkeypatch.setattr("services.kvstate.usage.roller.time.time", lambda: noon_s + 60 * 86_400)
    known = register(
        TenantRecord(tenant="few", usage_days=40),
        TenantRecord(tenant="many", usage_days=80),
        TenantRecord(tenant="all"),
    )
    streams = MemoryUsageStreams()
    for tenant in ("few", "many", "all"):
        for days in (0, 15, 30):
            ended_ms = NOON_MS + days * 86_400_000
            streams.add(record(f"r{days}", tenant=tenant, ended_ms=ended_ms))
    one, sums = roller(streams, known)
    while await one.roll_once():
        pass
    assert await one.roll_once() == 0
    left = {(entry.tenant, entry.day) for entry in sums.page("", "", "", "")[0]}
    kept = {(tenant, day) for tenant in ("many", "all") for day in ("2026-09-21", "2026-10-06", "2026-10-21")}
    assert left == kept | {("few", "2026-10-21")}
    fresh = UsageSums()
    await cast(Any, streams).refresh(fresh)
    stored = {(entry.tenant, entry.day) for entry in fresh.page("", "", "", "")[0]}
    assert stored == left, "they are gone from the stream, too"
    shorter = TenantRecord(tenant="many", usage_days=36)
    known.replace_all([StoredAccount(record=shorter, revision=2)], 2)
    await one.roll_once()
    left = {(entry.tenant, entry.day) for entry in sums.page("", "", "", "")[0]}
    assert {day for tenant, day in left if tenant == "many"} == {"2026-10-21"}
    assert len([day for tenant, day in left if tenant == "all"]) == 3


async def test_money_is_exact_over_many_small_requests() -> None:
    """A token of 300,000 millionths per million costs 0.3 of a millionth: four requests cost 1.2."""
    known = register(PriceRecord(model="demo", prompt=300_000, cached=100_000, completion=500_000))
    streams = MemoryUsageStreams()
    for number in range(4):
        streams.add(record(f"a{number}", prompt_tokens=1, completion_tokens=0, model="demo:adapter"))
    (total,) = await rolled(streams, known)
    assert total.money == 1
    streams.add(record("b", prompt_tokens=100, cached_tokens=40, completion_tokens=20))
    totals = {one.model: one.money for one in await rolled(streams, known)}
    assert totals["demo"] == (60 * 300_000 + 40 * 100_000 + 20 * 500_000) // 1_000_000


async def test_a_lost_ledger_begins_again_from_its_first_record() -> None:
    streams = MemoryUsageStreams()
    for number in range(9):
        streams.add(record(f"a{number}"))
    await rolled(streams)
    streams.ledger.clear()
    streams.name = "another one"
    streams.add(record("b"))
    assert tokens_of(await rolled(streams)) == (10, 100, 50)


runs_of_requests = st.lists(
    st.tuples(
        st.integers(0, 12),  # the request
        st.sampled_from(["done", "cut", "failed"]),
        st.integers(0, 20),  # completion tokens of a run that was not done
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(runs_of_requests, st.randoms(use_true_random=False), st.integers(1, 9), st.integers(0, 25))
def test_rollers_that_break_down_anywhere_count_each_request_once(
    runs: list[tuple[int, str, int]], chance: random.Random, at_once: int, fails_of_100: int
) -> None:
    streams = MemoryUsageStreams(lambda: chance.randrange(100) < fails_of_100, at_once)
    best: dict[int, tuple[bool, int]] = {}
    records = []
    for number, outcome, cut_at in runs:
        tokens = 30 + number if outcome == "done" else cut_at
        best[number] = max(best.get(number, (False, 0)), (outcome == "done", tokens))
        records.append(
            record(
                f"r{number}",
                tenant=f"t{number % 3}",
                completion_tokens=tokens,
                outcome=outcome,
                ended_ms=NOON_MS + chance.randrange(3) * 86_400_000,
            )
        )

    async def work() -> list[UsageSum]:
        rollers = [roller(streams)[0], roller(streams)[0]]
        for one in records:
            streams.add(one)
            while chance.randrange(2):
                who = chance.randrange(2)
                with suppress(RyzError):
                    await rollers[who].roll_once()
                if not chance.randrange(4):
                    rollers[who] = roller(streams)[0]  # it was killed, and is started again
        streams.fails = lambda: False
        return await rolled(streams)

    sums = asyncio.run(work())
    assert tokens_of(sums) == (len(best), 10 * len(best), sum(tokens for _, tokens in best.values()))


async def test_two_rollers_at_the_same_time_count_each_request_once() -> None:
    streams = MemoryUsageStreams(at_once=3)
    one, other = roller(streams)[0], roller(streams)[0]
    for number in range(100):
        streams.add(record(f"a{number}", tenant=f"t{number % 7}"))
        for each in (one, other):
            with suppress(RyzError):
                await each.roll_once()
    assert tokens_of(await rolled(streams)) == (100, 1000, 500)


async def test_memory_of_ids_is_bounded() -> None:
    streams = MemoryUsageStreams()
    one, _ = roller(streams, max_ids=40)
    for number in range(500):
        streams.add(record(f"a{number}"))
    streams.add(record("a499"))
    await one.roll_once()
    assert tokens_of(await rolled(streams)) == (500, 5000, 2500)


async def test_pages_and_sums_for_limits() -> None:
    streams = MemoryUsageStreams()
    number = 2 * PAGE + 3
    for index in range(number):
        day = NOON_MS + index % 3 * 86_400_000
        key = "aaaaaaaaaaaa" if index % 2 else ""
        streams.add(record(f"a{index}", tenant=f"t{index:04d}", ended_ms=day, key_id=key))
    for key in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):
        streams.add(record(f"own {key}".replace(" ", "-"), tenant="t0004", key_id=key))
    one, sums = roller(streams, register(PriceRecord(model="demo", prompt=1_000_000)))
    while await one.roll_once():
        pass
    listed: list[UsageSum] = []
    cursor, pages = "", 0
    while pages == 0 or cursor:
        page, cursor = sums.page("", "", "", cursor)
        listed += page
        pages += 1
    assert (len(listed), pages) == (number + 2, 3)
    assert listed == sorted(listed, key=lambda one: (one.day, one.tenant, one.key_id, one.model))
    assert {one.day for one in sums.page("", "2026-09-22", "2026-09-22", "")[0]} == {"2026-09-22"}
    assert {one.tenant for one in sums.page("t0004", "", "", "")[0]} == {"t0004"}
    assert sums.used("t0004", "", "2026-09-21", "2026-09-22") == (45, 30)
    assert sums.used("t0004", "bbbbbbbbbbbb", "2026-09-01", "2026-09-30") == (15, 10)
    assert sums.used("t0004", "", "2026-09-23", "2026-09-30") == (0, 0)
    sums.forget_before("2026-09-22")
    assert "2026-09-21" not in {one.day for one in sums.page("", "", "", "")[0]}


def test_series_are_bounded() -> None:
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry)
    for number in range(2 * MAX_MODELS):
        metrics.count(f"m{number}", (1, 3, *NOTHING[2:]))
    samples = {
        sample.labels["model"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "ryz_usage_tokens_total"
    }
    assert len(samples) <= MAX_MODELS + 1
    assert samples["other"] == 3 * MAX_MODELS


async def test_sums_that_are_read_anew_between_two_writes_are_not_added_to_twice() -> None:
    """A call for sums refreshes them while another replica has added the same records."""
    streams = MemoryUsageStreams()
    one, sums = roller(streams)
    other, _ = roller(streams)
    streams.add(record("a", tenant="first"))
    streams.add(record("b", tenant="second"))
    put = streams.put_sum

    async def put_and_wait(stored: StoredSum, expected: int) -> int:
        streams.put_sum = put  # type: ignore[method-assign]
        written = await streams.put_sum(stored, expected)
        await other.roll_once()
        await streams.refresh(sums)
        return written

    streams.put_sum = put_and_wait  # type: ignore[method-assign]
    with suppress(RyzError):
        await one.roll_once()
    assert tokens_of(await rolled(streams)) == (2, 20, 10)
