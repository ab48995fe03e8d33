"""The budget of resent bytes: a burst and a rate, separate for each user."""

from services.worker.domain.generation.resend_budget import BURST_S, MAX_USERS, MIN_COST, ResendBudget

RATE = 100 * MIN_COST


def test_a_burst_then_the_rate() -> None:
    budget = ResendBudget(RATE)
    assert budget.wait_s("a", 0.0) == 0.0
    budget.spend("a", int(RATE * BURST_S), 0.0)
    wait_s = budget.wait_s("a", 0.0)
    assert wait_s == MIN_COST / RATE
    assert budget.wait_s("b", 0.0) == 0.0
    assert budget.wait_s("a", wait_s) == 0.0
    budget.spend("a", 10 * RATE, wait_s)  # one answer may exceed the rest of the budget
    assert budget.wait_s("a", wait_s) > 9
    assert budget.wait_s("a", 1000.0) == 0.0


def test_short_answers_count_too() -> None:
    budget = ResendBudget(RATE)
    asked = 0
    while not budget.wait_s("a", 0.0):
        budget.spend("a", 10, 0.0)
        asked += 1
    assert asked == BURST_S * 100


def test_users_are_bounded_and_no_limit_is_none() -> None:
    budget = ResendBudget(RATE)
    for number in range(MAX_USERS + 10):
        budget.spend(f"u{number}", 10 * RATE, 0.0)
    assert len(budget._left) == MAX_USERS
    assert budget.wait_s("u0", 0.0) == 0.0
    assert budget.wait_s(f"u{MAX_USERS}", 0.0) > 0
    free = ResendBudget(0)
    free.spend("a", 2**40, 0.0)
    assert free.wait_s("a", 0.0) == 0.0
