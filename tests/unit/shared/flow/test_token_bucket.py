"""Token buckets: a burst and then the rate, debts, shares of several processes, bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.flow.token_bucket import BURST_S, MAX_NAMES, TokenBucket, TokenBuckets


def test_a_bucket_refuses_what_it_does_not_have_and_says_when_it_has_it() -> None:
    bucket = TokenBucket(2.0, 2.0, 0.0)
    assert [bucket.take_units(1, 0.0), bucket.take_units(1, 0.0)] == [0.0, 0.0]
    assert bucket.take_units(1, 0.1) == pytest.approx(0.4)
    assert bucket.take_units(1, 0.5) == 0.0
    assert bucket.units(100.0) == 2.0, "no more than a burst comes back"


def test_a_refused_request_takes_nothing_and_time_never_goes_back() -> None:
    bucket = TokenBucket(1.0, 4.0, 10.0)
    assert bucket.take_units(4, 10.0) == 0.0
    assert bucket.take_units(3, 12.0) == pytest.approx(1.0)
    assert bucket.units(12.0) == pytest.approx(2.0)
    assert bucket.take_units(1, 12.0) == 0.0
    assert bucket.units(5.0) == pytest.approx(1.0), "a time before the last one counts as that one"
    bucket.charge_units(1, 5.0)
    assert bucket.units(12.0) == pytest.approx(0.0)


def test_a_bucket_that_nothing_comes_back_to() -> None:
    bucket = TokenBucket(0.0, 1.0, 0.0)
    assert bucket.take_units(1, 0.0) == 0.0
    assert bucket.take_units(1, 1e9) == math.inf


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 3)), min_size=1, max_size=200),
    st.floats(0.5, 50),
    st.integers(3, 10),
)
def test_never_more_than_a_burst_and_the_rate_passes(
    requests: list[tuple[float, int]], rate: float, burst: int
) -> None:
    bucket, now, granted = TokenBucket(rate, burst, 0.0), 0.0, 0
    for gap, units in requests:
        now += gap
        wait_s = bucket.take_units(units, now)
        assert wait_s >= 0
        if not wait_s:
            granted += units
        else:
            assert bucket.wait_s(units, now + wait_s) == pytest.approx(0.0, abs=1e-6)
    assert granted <= burst + rate * now + 1e-6


def test_a_charge_may_be_owed_up_to_a_bound_and_given_back() -> None:
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.charge_units(15, 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(6.0)
    bucket.charge_units(1e9, 0.0, most_debt=20.0)
    assert bucket.units(0.0) == -20.0
    bucket.charge_units(-1e9, 0.0)
    assert bucket.units(0.0) == 10.0


def test_a_burst_of_seconds_and_then_the_rate() -> None:
    rates = TokenBuckets()
    passed = [rates.take_units("a", 10.0, 0.0) == 0.0 for _ in range(100)]
    assert sum(passed) == 10 * BURST_S
    assert passed == sorted(passed, reverse=True)
    wait_s = rates.take_units("a", 10.0, 0.0)
    assert wait_s == pytest.approx(0.1)
    assert rates.take_units("a", 10.0, wait_s + 1e-9) == 0.0
    assert sum(rates.take_units("a", 10.0, 1.0 + wait_s) == 0.0 for _ in range(100)) == 10


def test_names_are_counted_apart() -> None:
    rates = TokenBuckets()
    assert rates.take_units("slow", 0.01, 0.0) == 0.0, "one may always come"
    assert rates.take_units("slow", 0.01, 0.0) == pytest.approx(100.0)
    assert rates.take_units("other", 0.01, 0.0) == 0.0
    assert all(rates.take_units("free", 0.0, 0.0) == 0.0 for _ in range(10_000))


def test_a_rate_below_one_in_a_minute_is_kept() -> None:
    """Buckets were once forgotten after a minute, and a new one was full."""
    rates = TokenBuckets()
    assert rates.take_units("slow", 0.01, 0.0) == 0.0
    assert rates.take_units("slow", 0.01, 61.0) == pytest.approx(39.0)
    assert rates.take_units("slow", 0.01, 100.0) == 0.0


def test_a_changed_rate_holds_at_once() -> None:
    rates = TokenBuckets()
    assert [rates.take_units("a", 1.0, 0.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(1.0)]
    assert rates.take_units("a", 100.0, 0.01) == 0.0


def test_what_costs_more_than_a_burst_passes_and_is_owed() -> None:
    rates = TokenBuckets(max_debt_s=58.0)
    assert rates.take_units("a", 1.0, 0.0, 64) == 0.0
    assert rates.take_units("a", 1.0, 0.0) == pytest.approx(1.0)
    rates.charge_units("b", 5.0, 0.0, 15)
    assert rates.take_units("b", 5.0, 0.0) == pytest.approx(6 / 5)
    rates.charge_units("c", 1.0, 0.0, 1e9)
    assert rates.take_units("c", 1.0, 0.0) == pytest.approx(59.0)
    rates.charge_units("d", 1.0, 0.0, 1e9, sharers=2)
    assert rates.take_units("d", 1.0, 0.0, sharers=2) == pytest.approx(60.0)
    rates.charge_units("free", 0.0, 0.0, 1e9)
    assert rates.take_units("free", 0.0, 0.0) == 0.0


def test_processes_keep_a_rate_together() -> None:
    rates, seconds = [TokenBuckets(), TokenBuckets()], 20
    passed = sum(
        rates[(step // 2) % 2].take_units("a", 10.0, step / 100, sharers=2) == 0.0
        for step in range(100 * seconds)
    )
    bursts = len(rates) * 10 * BURST_S
    assert 10 * seconds <= passed <= 10 * seconds + bursts


def test_names_are_bounded_and_the_one_used_longest_ago_is_forgotten() -> None:
    rates = TokenBuckets()
    for number in range(MAX_NAMES):
        rates.charge_units(f"u{number}", 1.0, 0.0, 1e9)
    assert rates.wait_s("u0", 1.0, 0.0, 1) > 0
    rates.charge_units("new", 1.0, 0.0, 1e9)
    assert len(rates) == MAX_NAMES
    assert rates.wait_s("u0", 1.0, 0.0, 1) > 0
    assert rates.wait_s("u1", 1.0, 0.0, 1) == 0.0
