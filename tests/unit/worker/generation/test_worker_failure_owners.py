"""Only failures of the group itself count against it; a request of its own tells them from others."""

from typing import get_args

import pytest

from services.worker.domain.generation.failure_owners import (
    ANSWER,
    GRAMMAR,
    GUEST,
    NOT_FINITE,
    OWNERS,
    PROMPT,
    Owner,
    owner_of,
)
from services.worker.domain.generation.request_counts import Control, RequestCounts, outcome_of
from shared.errors import (
    FAMILY,
    Cancelled,
    DeadlineExceeded,
    GroupLost,
    Internal,
    InvalidRequest,
    Overloaded,
    Poison,
    RyzError,
    Unavailable,
)


def failed(
    counts: RequestCounts, error: RyzError, *, tenant: str = "a", served: bool = True, now: float = 0.0
) -> None:
    counts.count_failed(error, tenant=tenant, served=served, now=now)


def control(counts: RequestCounts, outcome: Control, now: float) -> int:
    counts.begin_control()
    return counts.count_control(outcome, now)


def test_every_code_has_an_owner() -> None:
    assert OWNERS.keys() == FAMILY.keys()
    assert set(OWNERS.values()) == set(get_args(Owner))
    assert owner_of(Internal("x")) == "unclear"


def test_what_a_guest_ended_counts_against_its_group_without_a_control() -> None:
    counts = RequestCounts()
    failed(counts, GroupLost("x", reason=GUEST))
    assert (counts.ended, counts.broken, counts.wants_control) == (0, 1, False)


def test_a_refusal_is_evidence_for_nothing() -> None:
    counts = RequestCounts()
    refusals: tuple[type[RyzError], ...] = (InvalidRequest, Poison, Overloaded, Unavailable, GroupLost)
    late: tuple[type[RyzError], ...] = (Cancelled, DeadlineExceeded)
    for kind in refusals:
        failed(counts, kind("x"))
    for kind in late:
        failed(counts, kind("x"), served=False)
    assert (counts.ended, counts.broken, counts.wants_control) == (0, 0, False)
    counts.count_done()
    for kind in late:
        failed(counts, kind("x"))
    assert (counts.ended, counts.broken, counts.wants_control) == (3, 0, False)


@pytest.mark.parametrize("reason", [GRAMMAR, PROMPT, ANSWER, NOT_FINITE, ""])
def test_any_number_of_unexpected_failures_of_one_caller_is_confined(reason: str) -> None:
    counts = RequestCounts()
    for number in range(3000):
        failed(counts, Internal("a bug", reason=reason), now=number / 1000)
        assert counts.wants_control
        if number % 7 == 0:
            assert control(counts, "passed", number / 1000) > 0
    control(counts, "passed", 4.0)
    assert (counts.broken, counts.ended, counts.confined) == (0, 0, 3000)
    assert not counts.wants_control


def test_failures_are_the_groups_own_when_it_fails_its_own_request() -> None:
    counts = RequestCounts()
    failed(counts, Internal("a bug", reason=NOT_FINITE))
    assert control(counts, "failed", 0.1) == 0
    assert counts.broken == 2  # the control as well
    assert (
        counts.wants_control
    )  # until one passes: routers are told of the recovery without a caller's request
    control(counts, "failed", 0.4)
    assert counts.broken == 3
    control(counts, "undecided", 0.7)
    assert counts.wants_control
    control(counts, "passed", 1.0)
    assert (counts.ended, counts.broken, counts.wants_control) == (1, 3, False)


def test_an_undecided_control_leaves_the_failures_for_the_next() -> None:
    counts = RequestCounts()
    failed(counts, Internal("a bug"))
    assert control(counts, "undecided", 0.1) == 0
    assert counts.wants_control
    control(counts, "failed", 0.2)
    assert counts.broken == 2


def test_a_control_decides_nothing_of_what_fails_after_it_began() -> None:
    counts = RequestCounts()
    failed(counts, Internal("a bug"))
    counts.begin_control()
    failed(counts, Internal("a bug"))
    assert counts.count_control("passed", 0.1) == 1
    assert counts.wants_control
    assert control(counts, "failed", 0.4) == 0
    assert (counts.confined, counts.broken) == (1, 2)


def test_failures_of_the_engine_that_three_tenants_meet_are_the_groups() -> None:
    counts = RequestCounts()
    for now, tenant in ((0.0, "a"), (0.5, "a"), (1.0, "b"), (12.0, "c"), (12.5, "d")):
        failed(counts, Internal("x", reason=NOT_FINITE), tenant=tenant, now=now)
        control(counts, "passed", now)
    assert counts.broken == 0  # the first ones were too long ago
    failed(counts, Internal("x", reason=NOT_FINITE), tenant="e", now=13.0)
    control(counts, "passed", 13.0)
    assert counts.broken == 3
    bugs = RequestCounts()
    for tenant in "abcdef":  # a bug that a popular content meets is no fault of the engine
        failed(bugs, Internal("x", reason=GRAMMAR), tenant=tenant)
        control(bugs, "passed", 0.0)
    assert (bugs.broken, bugs.confined) == (0, 6)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "passed"),
        (InvalidRequest("no such form"), "passed"),
        (Internal("x"), "failed"),
        (GroupLost("x"), "undecided"),
        (Cancelled("x"), "undecided"),
        (DeadlineExceeded("x"), "undecided"),
    ],
)
def test_what_the_end_of_a_control_says(error: RyzError | None, outcome: str) -> None:
    assert outcome_of(error) == outcome
