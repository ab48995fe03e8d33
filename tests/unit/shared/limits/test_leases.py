"""Leases of several holders in virtual time: never over a limit, little left unused, exact over months."""

from datetime import datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages import Limits, TenantRecord
from tests.kits.chaos.scale import scaled
from tests.kits.tenants.limit_simulation import SimulatedHolder, World

MINUTE = 1_789_999_980.0  # a minute begins


def tenant(time_zone: str = "UTC", **limits: int) -> TenantRecord:
    return TenantRecord(tenant="t", limits=Limits(**limits), time_zone=time_zone)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which holder
        st.sampled_from(["ask", "ask", "ask", "tick", "lose", "crash", "wait"]),
        st.integers(1, 25),  # requests, or tenths of a second
    ),
    min_size=20,
    max_size=150,
)


@given(STEPS, st.integers(1, 300))
@settings(deadline=None, max_examples=150)
def test_holders_never_answer_more_than_the_limit(steps: list[tuple[int, str, int]], limit: int) -> None:
    world, random = World(MINUTE + 1.0), Random(1)
    record = tenant(requests_per_minute=limit)
    holders = [SimulatedHolder(world, f"h{number}", record) for number in range(4)]
    answered: dict[int, int] = {}
    for step, (which, kind, count) in enumerate(steps):
        minute = int(world.wall_s // 60)
        if kind == "ask":
            good = sum(holders[which].request() is None for _ in range(count))
            answered[minute] = answered.get(minute, 0) + good
        elif kind == "tick":
            holders[which].exchange()
        elif kind == "lose":
            holders[which].exchange(lost=random)
        elif kind == "crash":
            holders[which] = SimulatedHolder(world, f"h{which}-{step}", record)
        else:
            world.wall_s += count / 10
        assert all(number <= limit for number in answered.values()), answered


@pytest.mark.parametrize("clock_ahead_s", [0, 3600])
def test_units_taken_alone_while_the_store_was_asked_are_among_those_it_gives(clock_ahead_s: int) -> None:
    world = World(MINUTE + 20.0)
    holder = SimulatedHolder(world, "a", tenant(requests_per_minute=30))
    (lease,) = holder.book.party("t", "", world.wall_s).leases
    waiting = [[(lease, 1)]] * 9
    report = holder.book.report(waiting, world.wall_s)
    assert report is not None
    answer = world.lease(report.message)
    lease.take_local(world.wall_s, int(world.wall_s + clock_ahead_s) * 1000, holders=1)
    assert [holder.book.take(needs, world.wall_s) for needs in waiting] == [None] * 9
    holder.book.accept(report, answer)
    assert sum(holder.request() is None for _ in range(60)) == 30 - 9
    assert world.store.total("t::requests:minute", int(MINUTE * 1000)) == 30


def test_units_given_back_to_a_store_that_is_away_are_taken_again() -> None:
    world = World(MINUTE + 20.0)
    holder = SimulatedHolder(world, "a", tenant(requests_per_minute=1000))
    assert holder.request() is None
    (lease,) = holder.book.party("t", "", world.wall_s).leases
    answered = 0
    for _ in range(60):
        if lease.held < 1:
            lease.take_local(world.wall_s, int(world.wall_s * 1000), holders=1)
        answered += holder.book.take([(lease, 1)], world.wall_s) is None
        world.wall_s += 0.5
        holder.book.report([], world.wall_s)  # it is not answered
    assert answered == 60


@pytest.mark.parametrize("limit", [60, 1000, 50_000])
@pytest.mark.parametrize("shares", [(1, 1, 1), (8, 1, 1), (20, 1, 0)])
def test_under_demand_at_most_a_hundredth_of_a_minute_stays_unused(
    limit: int, shares: tuple[int, ...]
) -> None:
    world = World(MINUTE)
    holders = [
        SimulatedHolder(world, f"h{number}", tenant(requests_per_minute=limit))
        for number in range(len(shares))
    ]
    per_s = 2.0 * limit / 60 / sum(shares)  # twice as many as are answered
    due = [0.0] * len(shares)
    answered = 0
    for _ in range(600):
        world.wall_s += 0.1 - 1e-9
        for number, holder in enumerate(holders):
            due[number] += shares[number] * per_s / 10
            while due[number] >= 1:
                due[number] -= 1
                answered += holder.request() is None
            holder.exchange()
    assert limit * 0.99 <= answered <= limit


def test_what_an_idle_holder_has_is_given_back() -> None:
    world = World(MINUTE)
    record = tenant(requests_per_minute=400)
    busy, idle = SimulatedHolder(world, "busy", record), SimulatedHolder(world, "idle", record)
    assert sum(idle.request() is None for _ in range(100)) == 100
    for _ in range(140):
        world.wall_s += 0.25
        idle.exchange()
    assert sum(busy.request() is None for _ in range(400)) == 300


def test_a_burst_is_served_from_what_was_leased_ahead() -> None:
    world = World(MINUTE)
    holder = SimulatedHolder(world, "h", tenant(requests_per_minute=100_000))
    calls = 0
    lease = world.lease

    def counted(asked):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        return lease(asked)

    world.lease = counted  # type: ignore[method-assign]
    for _ in range(100):
        for _ in range(20):
            assert holder.request() is None
        world.wall_s += 0.25
        holder.exchange()
    assert calls < 200, "2000 requests"


def test_tokens_that_were_used_beyond_the_estimate_are_a_debt_of_the_window() -> None:
    world = World(MINUTE)
    record = tenant(tokens_per_minute=1000)
    one, two = SimulatedHolder(world, "one", record), SimulatedHolder(world, "two", record)
    assert one.request(100, used=990) is None
    one.exchange()
    assert two.request(100) is not None
    assert two.request(10) is None, "ten are left"
    world.wall_s += 60
    assert two.request(100) is None, "the debt ends with its window"


@pytest.mark.parametrize(
    ("zone", "month", "days"),
    # windows of other zones and changes of summer time: `test_windows.py`
    [("Europe/Oslo", "2026-03", 31), *scaled([], [
        ("Europe/Oslo", "2026-10", 31),
        ("America/New_York", "2026-03", 31), ("America/New_York", "2026-11", 30),
    ])],
)  # fmt: skip
def test_a_month_of_traffic_ends_each_budget_where_it_should(zone: str, month: str, days: int) -> None:
    first = datetime.fromisoformat(f"{month}-01T00:00").replace(tzinfo=ZoneInfo(zone)).timestamp()
    world, random = World(first), Random(5)
    per_day, per_month = 1000, 20_500
    record = tenant(zone, tokens_per_day=per_day, tokens_per_month=per_month)
    holders = [SimulatedHolder(world, f"h{number}", record) for number in range(3)]
    used: dict[str, int] = {}
    reasons: dict[str, set[str]] = {}
    until = datetime.fromisoformat(f"{month}-{days}T23:59").replace(tzinfo=ZoneInfo(zone)).timestamp()
    while world.wall_s < until:
        day = datetime.fromtimestamp(world.wall_s, ZoneInfo(zone)).strftime("%d")
        for _ in range(6):
            holder = random.choice(holders)
            refusal = holder.request(10, used=10)
            if refusal is None:
                used[day] = used.get(day, 0) + 10
            else:
                reasons.setdefault(day, set()).add(str(refusal.data["reason"]))
        for holder in holders:
            holder.exchange()
        world.wall_s += 300.0
    assert [used.get(f"{day:02}", 0) for day in range(1, 21)] == [per_day] * 20
    assert used["21"] == 500, "the month ends in the middle of this day"
    assert sum(used.values()) == per_month
    assert reasons["05"] == {"tenant_tokens_per_day"}
    assert reasons["25"] == {"tenant_tokens_per_month"}
    world.wall_s += 120.0  # the next month
    assert holders[0].request(10) is None
