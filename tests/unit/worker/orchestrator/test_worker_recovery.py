"""Recovery after a failure: the restart pauses, their reset, and when a group gives up."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.orchestrator.failure_recovery_manager import (
    RULES,
    FailureRecoveryManager,
    Recovery,
    RestartPauses,
)
from services.worker.rank_protocol.failures import Failure, FailureKind

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
LIMITS = RestartPauses(
    first_s=0.4, longest_s=5.0, give_up_after=5, given_up_s=30.0, healthy_s=3.0, jitter=0.25
)


def manager(draw: float = 0.5) -> FailureRecoveryManager:
    """A manager whose random draw is always `draw`; 0.5 means no jitter."""
    return FailureRecoveryManager(LIMITS, lambda: draw)


def died(one: FailureRecoveryManager, now: float = 0.0, kind: FailureKind = "rank_died") -> Recovery:
    return one.decide_recovery(Failure(kind, "why"), now)


def test_each_kind_of_failure_has_a_rule() -> None:
    assert set(RULES) == set(KINDS)


def test_pauses_double_and_then_the_group_gives_up_for_now() -> None:
    one = manager()
    recoveries = [died(one) for _ in range(7)]
    assert [recovery.pause_s for recovery in recoveries] == [0.4, 0.8, 1.6, 3.2, 5.0, 30.0, 30.0]
    assert [recovery.gives_up for recovery in recoveries] == [False] * 5 + [True] * 2
    assert [recovery.fresh for recovery in recoveries] == [False] * 2 + [True] * 5


def test_an_engine_that_worked_for_a_while_starts_over() -> None:
    one = manager()
    for _ in range(6):
        died(one)
    one.engine_ready(100.0)
    assert died(one, 102.9).gives_up, "it fell over right after the start"
    one.engine_ready(200.0)
    assert died(one, 203.0) == Recovery(0.4, gives_up=False, fresh=False)
    assert died(one, 300.0).pause_s == 0.8, "it was not ready in between"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rank_died", Recovery(0.4, gives_up=False, fresh=False)),
        ("rank_hung", Recovery(0.4, gives_up=False, fresh=False)),
        ("memory", Recovery(1.0, gives_up=False, fresh=True)),
        ("start_failed", Recovery(0.4, gives_up=False, fresh=True)),
        ("refused", Recovery(30.0, gives_up=True, fresh=False)),
        ("device_lost", Recovery(30.0, gives_up=True, fresh=True)),
    ],
)
def test_what_is_special_about_a_kind(kind: FailureKind, expected: Recovery) -> None:
    assert died(manager(), kind=kind) == expected


def test_a_killed_group_is_back_in_time_for_the_promise_of_five_seconds() -> None:
    slowest = FailureRecoveryManager(draw=lambda: 1.0)
    pauses = [died(slowest).pause_s for _ in range(3)]
    assert pauses[0] <= 0.5
    assert sum(pauses[1:2]) < 5


def test_kills_from_outside_lengthen_the_pause_but_the_group_goes_on() -> None:
    one, killed = manager(), Failure("rank_died", "killed by SIGKILL", outside=True)
    one.engine_ready(0.0)
    assert one.decide_recovery(killed, 1.0) == Recovery(0.4, gives_up=False, fresh=False)
    for now in range(2, 40):
        one.engine_ready(now)
        recovery = one.decide_recovery(killed, now + 0.5)
        assert (recovery.gives_up, recovery.fresh) == (False, False)
    assert recovery.pause_s == 5.0
    assert [died(one).gives_up for _ in range(6)] == [False] * 5 + [True], "its own failures count as ever"


def test_kills_before_the_engine_was_ready_count_as_failed_starts() -> None:
    one = manager()
    killed = Failure("rank_died", "killed by SIGKILL", outside=True)
    assert [one.decide_recovery(killed, 0.0).gives_up for _ in range(6)] == [False] * 5 + [True]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 100), st.booleans()), max_size=80),
    st.floats(0, 0.999),
)
def test_whatever_happens_pauses_are_bounded_and_a_group_is_never_left_alone(
    events: list[tuple[FailureKind, float, bool]], draw: float
) -> None:
    one, now = manager(draw), 0.0
    for kind, passed, comes_up in events:
        if comes_up:
            one.engine_ready(now)
        now += passed
        recovery = died(one, now, kind)
        assert 0.75 * 0.4 <= recovery.pause_s <= 1.25 * 30
        if comes_up and passed >= 3.0:
            assert one.in_a_row == 1
        if not recovery.gives_up:
            assert recovery.pause_s <= 1.25 * 5.0
        assert recovery.gives_up == (RULES[kind].hopeless or one.in_a_row > 5)


def test_any_number_of_failures_is_no_overflow() -> None:
    patient = FailureRecoveryManager(RestartPauses(give_up_after=10**6), lambda: 0.5)
    assert [died(patient).pause_s for _ in range(3000)][-1] == 1.5
