"""Small parts of the router: the map with expiring entries, the balance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.expiring import ExpiringMap
from services.router.domain.groups.balance import DecayingCounts, imbalance


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
