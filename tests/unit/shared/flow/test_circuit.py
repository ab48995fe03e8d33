"""The circuit breaker: of a group by its losses and broken generations, of a store by its failures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.flow.circuit import Circuit, CircuitLimits, store_limits


def opened() -> Circuit:
    circuit = Circuit(CircuitLimits(failures=2, window_s=10.0, open_s=1.0, max_open_s=4.0))
    circuit.count_failure(0.0)
    assert circuit.count_failure(0.0)
    return circuit


def test_failures_far_apart_do_not_open_it() -> None:
    circuit = Circuit(CircuitLimits(failures=2, window_s=10.0))
    assert not circuit.count_failure(0.0)
    assert not circuit.count_failure(10.1)
    assert circuit.count_failure(10.2)


def test_a_success_forgets_failures() -> None:
    circuit = Circuit(CircuitLimits(failures=2))
    circuit.count_failure(0.0)
    circuit.count_success()
    assert not circuit.count_failure(0.1)
    assert circuit.allows(0.1)


def test_open_lets_nothing_pass_and_half_open_one() -> None:
    circuit = opened()
    assert not circuit.allows(0.99)
    assert circuit.state(1.0) == "half_open"
    assert circuit.allows(1.0)
    circuit.count_sent(1.0)
    assert not circuit.allows(1.5)
    assert circuit.allows(2.0)  # the probe had no outcome


def test_a_failed_probe_doubles_the_time_up_to_the_limit() -> None:
    circuit = opened()
    now = 0.0
    for open_s in (1.0, 2.0, 4.0, 4.0):
        assert not circuit.allows(now + open_s - 0.01)
        now += open_s
        assert circuit.allows(now)
        circuit.count_sent(now)
        assert circuit.count_failure(now)


def test_a_probe_that_ends_well_closes_it() -> None:
    circuit = opened()
    circuit.count_sent(1.0)
    circuit.count_success()
    assert circuit.state(1.0) == "closed"
    assert not circuit.count_failure(1.1)


def test_late_failures_of_an_open_circuit_change_nothing() -> None:
    circuit = opened()
    assert not circuit.count_failure(0.5)
    assert circuit.allows(1.0)


def new_circuit() -> Circuit:
    return Circuit(CircuitLimits(failures=3, window_s=10.0, open_s=1.0))


def test_three_broken_ends_and_none_that_is_good_open_it() -> None:
    circuit = new_circuit()
    assert not circuit.count_ends(0, 2, 0.0)
    assert circuit.count_ends(0, 1, 5.0)
    assert not circuit.allows(5.5)


def test_a_few_broken_ends_among_many_good_ones_are_no_reason() -> None:
    circuit = new_circuit()
    for step in range(1000):
        assert not circuit.count_ends(1, 0, step / 100)
    assert not circuit.count_ends(2, 5, 10.0)
    assert circuit.state(10.0) == "closed"
    assert not circuit.count_ends(0, 2, 40.0)  # all earlier ends are too old to count
    assert circuit.count_ends(0, 1, 41.0)


def test_to_accept_requests_does_not_hide_that_they_break() -> None:
    circuit = new_circuit()
    for second in range(2):
        circuit.count_success()
        assert not circuit.count_ends(0, 1, second)
    circuit.count_success()
    assert circuit.count_ends(0, 1, 2.0)
    circuit.count_success()
    assert circuit.state(2.5) == "open"
    circuit.count_sent(3.1)
    circuit.count_success()
    assert circuit.state(3.2) == "half_open"
    assert not circuit.count_ends(1, 0, 3.3)
    assert circuit.state(3.3) == "closed"


def test_the_end_of_a_probe_decides_and_older_ends_do_not() -> None:
    circuit = new_circuit()
    assert circuit.count_ends(0, 3, 0.0)
    assert not circuit.count_ends(5, 0, 0.5)
    assert not circuit.count_ends(5, 0, 1.5)  # no request was sent since it opened
    assert circuit.state(1.5) == "half_open"
    circuit.count_sent(1.6)
    assert circuit.count_ends(0, 1, 1.7)
    assert not circuit.allows(3.6)  # the open time is two seconds now
    assert circuit.allows(3.8)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.0, 2.0)), max_size=200))
def test_ends_are_counted_in_bounded_memory_and_never_open_it_while_most_are_good(
    ends: list[tuple[int, int, float]],
) -> None:
    circuit, now = new_circuit(), 0.0
    for good, broken, pause in ends:
        now += pause
        assert not circuit.count_ends(good + broken, broken, now)
        assert len(circuit._ends) <= 18
    assert circuit.state(now) == "closed"


def test_time_outs_open_the_circuit_only_in_a_row() -> None:
    circuit = Circuit(store_limits(failures=3, probe_s=0.25))
    assert not circuit.count_failure(0.0)
    assert not circuit.count_failure(0.0)
    circuit.count_success()
    assert not circuit.count_failure(0.0)
    assert not circuit.count_failure(0.0)
    assert circuit.count_failure(1.0)
    assert not circuit.is_closed
    assert circuit.retry_after_s(1.1) == pytest.approx(0.15)


def test_a_refused_connection_opens_it_at_once_and_an_answer_closes_it() -> None:
    circuit = Circuit(store_limits())
    assert circuit.count_failure(0.0, certain=True)
    assert not circuit.count_failure(0.1, certain=True)
    assert circuit.count_success()
    assert circuit.is_closed
    assert not circuit.count_success()
    assert circuit.opened_total == 1


def test_failures_of_a_store_count_however_far_apart() -> None:
    circuit = Circuit(store_limits(failures=2))
    assert not circuit.count_failure(0.0)
    assert circuit.count_failure(1e6)


def test_a_failed_probe_of_a_store_does_not_make_the_next_one_later() -> None:
    circuit = Circuit(store_limits(probe_s=0.25))
    assert circuit.count_failure(0.0, certain=True)
    for probe in range(1, 10):
        now = 0.25 * probe
        assert circuit.retry_after_s(now) == 0.0
        assert circuit.count_failure(now)
        assert circuit.retry_after_s(now) == 0.25
    assert circuit.opened_total == 1, "it was not closed in between"
    assert circuit.count_success()
    assert circuit.retry_after_s(3.0) == 0.0
    assert not circuit.count_failure(math.inf), "failures before it closed do not count"


def test_one_failure_that_leaves_no_doubt_opens_it() -> None:
    circuit = Circuit(CircuitLimits(failures=3))
    assert circuit.count_failure(0.0, certain=True)
    assert not circuit.allows(0.1)
