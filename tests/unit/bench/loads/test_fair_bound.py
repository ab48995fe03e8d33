"""The bound of two tenants that flood a group, and the gap that a bench finds."""

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tenants.fair_bound import GroupRules, Rival, Served, bound, bound_report, largest_gap
from benchmarks.tenants.watched_rules import WatchedRules

RULES = GroupRules(quantum=100.0, decode_tokens=2.0, max_running=8)


def rival(served: list[Served], **more: float) -> Rival:
    given = {"weight": 1.0, "streams": 4, "prompt": 20, "answer": 5} | more
    return Rival(given["weight"], int(given["streams"]), int(given["prompt"]), int(given["answer"]), served)


def test_the_bound_is_that_of_the_docs() -> None:
    # Q + U: 100 + 100 + 4 * 2 * 5 + 20 for each
    assert bound(rival([]), rival([]), RULES) == 2 * 260
    assert bound(rival([], streams=64), rival([]), RULES) == 260 + 100 + 100 + 8 * 2 * 5 + 20
    assert bound(rival([], weight=2.0), rival([]), RULES) == 260 + 100 + (100 + 40 + 20) / 2


def test_tokens_are_weighted_and_a_window_is_no_longer_than_it_is() -> None:
    first = [Served(float(at), 10, decoded=False) for at in range(30)]
    second = [Served(at + 0.5, 5) for at in range(30)]
    even = largest_gap(rival(first), rival(second), RULES, begin=0.0, end=30.0)
    assert even == 10.0, "5 decoded tokens count as 10 of a prompt; one event is between two of the other"
    alone = largest_gap(rival(first), rival([]), RULES, begin=0.0, end=30.0, window_s=4.0)
    assert alone == 50.0, "events at 0, 1, 2, 3 and 4 s"
    heavy = largest_gap(rival(first, weight=5.0), rival([]), RULES, begin=0.0, end=30.0, window_s=4.0)
    assert heavy == 10.0
    assert largest_gap(rival(first), rival([]), RULES, begin=28.0, end=30.0) == 20.0


def test_a_tenant_that_gets_too_much_is_found() -> None:
    fair = {"a": rival([Served(at, 50, decoded=False) for at in map(float, range(20))]),
            "b": rival([Served(at, 50, decoded=False) for at in map(float, range(20))])}  # fmt: skip
    assert bound_report(fair, RULES, begin=0.0, end=20.0, waited=1.0)["holds"] is True
    late = {"a": fair["a"], "b": rival(list(fair["b"].served[10:]))}
    told = bound_report(late, RULES, begin=0.0, end=20.0, waited=1.0)
    assert (told["gap_tokens"], told["bound_tokens"], told["holds"]) == (500.0, 520.0, True), (
        "ten events alone"
    )
    assert (told["quantum"], told["decode_tokens"], told["max_running"]) == (100.0, 2.0, 8)
    later = {"a": fair["a"], "b": rival(list(fair["b"].served[11:]))}
    assert bound_report(later, RULES, begin=0.0, end=20.0, waited=1.0)["holds"] is False


@given(st.integers(0, 10_000))
def test_the_gap_is_that_of_all_pairs_of_moments(seed: int) -> None:
    rng = Random(seed)

    def some() -> list[Served]:
        return sorted(Served(rng.random() * 30, rng.randrange(1, 30), rng.random() < 0.5) for _ in range(12))

    first, second = rival(some(), weight=rng.choice((1.0, 3.0))), rival(some())
    events = sorted(
        (each.when, sign * each.tokens * (2.0 if each.decoded else 1.0) / one.weight)
        for one, sign in ((first, 1), (second, -1))
        for each in one.served
    )
    assert all(a < b for (a, _), (b, _) in pairwise(events))
    largest = max(
        abs(sum(cost for _, cost in events[i : j + 1]))
        for i in range(len(events))
        for j in range(i, len(events))
        if events[j][0] - events[i][0] <= 10.0
    )
    found = largest_gap(first, second, RULES, begin=0.0, end=30.0)
    assert abs(found - largest) < 1e-6


def test_parties_that_do_not_always_want_more_are_not_judged() -> None:
    late = {"a": rival([Served(float(at), 90, decoded=False) for at in range(20)]), "b": rival([])}
    assert bound_report(late, RULES, begin=0.0, end=20.0, waited=0.89)["holds"] is None
    assert bound_report(late, RULES, begin=0.0, end=20.0, waited=0.9)["holds"] is False
    both, one = frozenset({"a", "b", "c"}), frozenset({"a"})
    seen = WatchedRules(waiting=[one, *[both] * 8, one])
    assert [seen.both_waited(["a", "b"], *part) for part in ((0.25, 0.95), (0.0, 1.0))] == [1.0, 0.8]
    assert WatchedRules().both_waited(["a"], 0.0, 1.0) == 0.0
