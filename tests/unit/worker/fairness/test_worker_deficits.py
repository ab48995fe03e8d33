"""Credits of parties: rounds, weights, parties that come and leave, and the bound of DLPM."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.scheduling.fairness.deficits import Deficits

QUANTUM = 100.0


def deficits(**weights: float) -> Deficits:
    made = Deficits(QUANTUM)
    for party, weight in weights.items():
        made.enter(party, weight)
    return made


def richest(credits: Deficits, parties: list[str]) -> str:
    return max(parties, key=credits.credit)


@given(
    st.lists(st.floats(0.1, 8.0), min_size=2, max_size=5),
    st.lists(st.floats(1.0, 300.0), min_size=50, max_size=400),
)
def test_what_backlogged_parties_get_differs_within_the_bound(
    weights: list[float], costs: list[float]
) -> None:
    names = [f"p{index}" for index in range(len(weights))]
    one = deficits(**dict(zip(names, weights, strict=True)))
    served = {name: [0.0] for name in names}  # over the weight, after each step
    for cost in costs:
        chosen = richest(one, names)
        assert one.credit(chosen) > 0
        one.charge(chosen, cost)
        one.refill(names)
        for name in names:
            served[name].append(served[name][-1] + (cost / one.weight(name) if name == chosen else 0.0))
        one.check_invariants(names)
    overrun = max(costs) / min(weights)  # what one step can bring beyond the credit
    for first in names:
        for second in names:
            gap = [a - b for a, b in zip(served[first], served[second], strict=True)]
            # over any interval: the largest rise of the gap
            rise = max(value - least for value, least in zip(gap, accumulate(gap, min), strict=True))
            assert rise <= 2 * (overrun + QUANTUM) + 1e-6


def test_weights_hold_in_proportion() -> None:
    one, served = deficits(a=1.0, b=3.0), {"a": 0.0, "b": 0.0}
    for _ in range(4000):
        chosen = richest(one, ["a", "b"])
        one.charge(chosen, 10.0)
        served[chosen] += 10.0
        one.refill(["a", "b"])
    assert abs(served["b"] / served["a"] - 3) < 0.1


def test_a_party_that_comes_gets_one_round_and_what_was_alone_owes_nothing() -> None:
    one = deficits(a=1.0)
    one.charge("a", 10_000.0)
    one.enter("b", 1.0)
    assert one.credit("a") == one.credit("b") == QUANTUM


def test_a_party_that_was_idle_gets_no_back_pay() -> None:
    one = deficits(a=1.0, b=1.0, c=1.0)
    one.leave("c")
    for _ in range(100):
        one.charge(richest(one, ["a", "b"]), 50.0)
        one.refill(["a", "b"])
    one.enter("c", 1.0)
    assert one.credit("c") == QUANTUM


def test_a_party_that_leaves_with_a_debt_has_it_until_others_were_served_as_much() -> None:
    one = deficits(a=1.0, b=1.0, c=1.0)
    one.charge("c", 350.0)
    one.leave("c")
    one.enter("c", 1.0)
    assert one.credit("c") == -250.0
    one.leave("c")
    for _ in range(4):
        one.charge("a", 2 * QUANTUM)
        one.charge("b", 2 * QUANTUM)
        one.refill(["a", "b"])
    one.check_invariants(["a", "b"])
    one.enter("c", 1.0)
    assert one.credit("c") == QUANTUM


def test_nobody_owes_anything_while_each_gets_what_it_wants() -> None:
    one = deficits(a=1.0, b=1.0)
    one.charge("a", 5000.0)
    one.refill([])
    assert one.credit("a") == QUANTUM


def test_a_round_waits_for_the_party_that_has_credit_and_wants_more() -> None:
    one = deficits(a=1.0, b=1.0)
    one.charge("a", 150.0)
    one.refill(["a", "b"])
    assert (one.credit("a"), one.credit("b")) == (-50.0, 100.0)
    one.refill(["a"])
    assert (one.credit("a"), one.credit("b")) == (50.0, 100.0)
