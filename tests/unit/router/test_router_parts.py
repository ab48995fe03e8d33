"""Small parts of the router: the circuit breaker, the map with expiring entries, the balance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.balance import DecayingCounts, imbalance
from services.router.domain.breaker import Breaker, BreakerLimits
from services.router.domain.expiring import ExpiringMap


def tripped() -> Breaker:
    breaker = Breaker(BreakerLimits(failures=2, window_s=10.0, open_s=1.0, max_open_s=4.0))
    breaker.count_lost(0.0)
    assert breaker.count_lost(0.0)
    return breaker


def test_failures_far_apart_do_not_trip() -> None:
    breaker = Breaker(BreakerLimits(failures=2, window_s=10.0))
    assert not breaker.count_lost(0.0)
    assert not breaker.count_lost(10.1)
    assert breaker.count_lost(10.2)


def test_a_success_forgets_failures() -> None:
    breaker = Breaker(BreakerLimits(failures=2))
    breaker.count_lost(0.0)
    breaker.count_accepted()
    assert not breaker.count_lost(0.1)
    assert breaker.allows(0.1)


def test_open_lets_nothing_pass_and_half_open_one() -> None:
    breaker = tripped()
    assert not breaker.allows(0.99)
    assert breaker.state(1.0) == "half_open"
    assert breaker.allows(1.0)
    breaker.count_sent(1.0)
    assert not breaker.allows(1.5)
    assert breaker.allows(2.0)  # the probe had no outcome


def test_a_failed_probe_doubles_the_time_up_to_the_limit() -> None:
    breaker = tripped()
    now = 0.0
    for open_s in (1.0, 2.0, 4.0, 4.0):
        assert not breaker.allows(now + open_s - 0.01)
        now += open_s
        assert breaker.allows(now)
        breaker.count_sent(now)
        assert breaker.count_lost(now)


def test_a_probe_that_ends_well_closes_it() -> None:
    breaker = tripped()
    breaker.count_sent(1.0)
    breaker.count_accepted()
    assert breaker.state(1.0) == "closed"
    assert not breaker.count_lost(1.1)


def test_late_failures_of_an_open_breaker_change_nothing() -> None:
    breaker = tripped()
    assert not breaker.count_lost(0.5)
    assert breaker.allows(1.0)


def test_entries_are_forgotten_after_their_time() -> None:
    table: ExpiringMap[str, int] = ExpiringMap(ttl_s=1.0, max_entries=10)
    table.put("a", 1, 0.0)
    assert table.get("a", 0.99) == 1
    assert table.get("a", 1.0) is None
    table.expire(1.0)
    assert len(table) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.floats(0, 0.5)), max_size=50))
def test_no_limit_is_ever_passed(steps: list[tuple[int, int, float]]) -> None:
    table: ExpiringMap[int, int] = ExpiringMap(ttl_s=1.0, max_entries=3, max_cost=60)
    now, costs = 0.0, {}
    for key, cost, wait in steps:
        now += wait
        table.put(key, cost, now, cost)
        costs[key] = cost
        assert len(table) <= 3
        assert table.cost <= 60
        assert table.cost == sum(found for k in costs if (found := table.get(k, now)) is not None)
        assert table.get(key, now) == cost


def test_an_entry_over_the_whole_limit_is_not_kept() -> None:
    table: ExpiringMap[str, int] = ExpiringMap(ttl_s=1.0, max_entries=3, max_cost=10)
    table.put("big", 1, 0.0, cost=11)
    assert (len(table), table.cost) == (0, 0)


def test_imbalance_is_the_excess_of_the_busiest_over_its_share() -> None:
    assert imbalance({"a": 50, "b": 50}, {"a": 1.0, "b": 1.0}) == pytest.approx(0.0)
    assert imbalance({"a": 60, "b": 40}, {"a": 1.0, "b": 1.0}) == pytest.approx(0.2)
    assert imbalance({"a": 75, "b": 25}, {"a": 3.0, "b": 1.0}) == pytest.approx(0.0)
    assert imbalance({"gone": 5}, {"a": 1.0}) == 0.0
    assert imbalance({"a": 5}, {}) == 0.0


def test_counts_decay() -> None:
    counts = DecayingCounts(half_life_s=10.0)
    for _ in range(8):
        counts.add("a", 100.0)
    assert counts.counts(110.0)["a"] == pytest.approx(4.0, rel=0.05)
    assert counts.counts(1000.0) == {}
