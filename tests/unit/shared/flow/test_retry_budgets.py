"""Budgets of what is sent again: requests of a client, bytes of frames to each user."""

from shared.flow.retry_budgets import MIN_RESEND_COST, ResendBudget, RetryBudget
from shared.flow.token_bucket import BURST_S, MAX_NAMES

RATE = 100 * MIN_RESEND_COST


def test_requests_that_wait_share_a_budget() -> None:
    budget = RetryBudget(10.0)
    taken = [budget.take_retry(100.0) for _ in range(20)]
    assert taken == [True] * 10 + [False] * 10
    assert budget.take_retry(100.15)
    assert not budget.take_retry(100.15)


def test_a_budget_below_one_in_a_second_lets_one_pass_in_its_time() -> None:
    budget = RetryBudget(0.5)
    assert [budget.take_retry(second) for second in (10.0, 11.0, 12.0, 13.0)] == [True, False, True, False]


def test_a_burst_then_the_rate() -> None:
    budget = ResendBudget(RATE)
    assert budget.wait_s("a", 0.0) == 0.0
    budget.spend_bytes("a", int(RATE * BURST_S), 0.0)
    wait_s = budget.wait_s("a", 0.0)
    assert wait_s == MIN_RESEND_COST / RATE
    assert budget.wait_s("b", 0.0) == 0.0
    assert budget.wait_s("a", wait_s) == 0.0
    budget.spend_bytes("a", 10 * RATE, wait_s)  # one answer may exceed the rest of the budget
    assert budget.wait_s("a", wait_s) > 9
    assert budget.wait_s("a", 1000.0) == 0.0


def test_what_is_left_of_a_budget_may_be_less_than_an_answer() -> None:
    budget = ResendBudget(RATE)
    budget.spend_bytes("a", int(RATE * BURST_S) - 1, 0.0)
    assert budget.wait_s("a", 0.0) == 0.0


def test_short_answers_count_too() -> None:
    budget = ResendBudget(RATE)
    asked = 0
    while not budget.wait_s("a", 0.0):
        budget.spend_bytes("a", 10, 0.0)
        asked += 1
    assert asked == BURST_S * 100


def test_users_are_bounded_and_no_limit_is_none() -> None:
    budget = ResendBudget(RATE)
    for number in range(MAX_NAMES + 1):
        budget.spend_bytes(f"u{number}", 10 * RATE, 0.0)
    assert budget.wait_s(f"u{MAX_NAMES}", 0.0) > 0
    assert budget.wait_s("u0", 0.0) == 0.0
    free = ResendBudget(0)
    free.spend_bytes("a", 2**40, 0.0)
    assert free.wait_s("a", 0.0) == 0.0
