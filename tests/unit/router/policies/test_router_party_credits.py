"""Credits of parties at groups, and sessions that leave a group at which their party had its part."""

from collections import Counter

import pytest

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, RequestFacts
from services.router.domain.policies.parties import ANSWER, SEEN_S, Contests, PartyCredits
from services.router.domain.policies.sessions import Hybrid

GROUPS = ("g0", "g1", "g2")
QUANTUM = 1000.0


def shared() -> PartyCredits:
    """Credits of party `a`, beside which another one is served."""
    credits = PartyCredits(QUANTUM)
    credits.charge("b", "g0", (1, 0), 0.0)
    return credits


def test_a_party_has_its_part_when_its_credit_is_used_up() -> None:
    credits = shared()
    credits.charge("a", "g0", (400, 100), 0.0)
    assert credits.spent_at("a", GROUPS, 0.0) == frozenset()
    credits.charge("a", "g0", (400, 100), 0.0)
    assert credits.spent_at("a", GROUPS, 0.0) == {"g0"}
    assert credits.spent_at("b", GROUPS, 0.0) == frozenset()


def test_a_party_that_is_alone_may_have_all_of_a_group() -> None:
    credits = PartyCredits(QUANTUM)
    credits.charge("a", "g0", (5000, 0), 0.0)
    assert credits.spent_at("a", GROUPS, 0.0) == frozenset()
    credits.charge("b", "g0", (1, 0), 1.0)
    assert credits.spent_at("a", GROUPS, 1.0) == {"g0"}
    assert credits.spent_at("a", GROUPS, 1.0 + SEEN_S) == frozenset()


def test_what_groups_get_of_a_party_differs_by_a_quantum_and_a_request() -> None:
    credits, sent = shared(), Counter[str]()
    for number in range(2000):
        spent = credits.spent_at("a", GROUPS, 0.0)
        group = next(name for name in GROUPS if name not in spent)  # the first one has its prefix
        tokens = 50 + number * 37 % 200
        credits.charge("a", group, (tokens, 10), 0.0)
        sent[group] += tokens + int(ANSWER) * 10
        assert max(sent.values()) - min(sent[name] for name in GROUPS) <= 2 * (QUANTUM + 250 + 10 * ANSWER)
    assert sent.total() > 20 * QUANTUM


def test_a_group_that_went_away_begins_anew() -> None:
    credits = shared()
    for name in GROUPS:
        credits.charge("a", name, (9000, 0), 0.0)
    assert credits.spent_at("a", GROUPS[:2], 0.0) == frozenset()
    assert credits.spent_at("a", GROUPS, 0.0) == frozenset()


def choose(spent: frozenset[str], waiting: int) -> Decision:
    groups = [GroupView(name, running=4, waiting=waiting, max_running=4, capacity=64) for name in GROUPS]
    facts = RequestFacts("m", "key", last_group="g0", session_tokens=100, spent=spent)
    return Hybrid().choose(facts, FleetView("m", groups), 0.0)


@pytest.mark.parametrize(
    ("spent", "waiting", "moves"), [({"g0"}, 1, True), ({"g0"}, 0, False), (set(), 1, False)]
)
def test_a_session_leaves_a_group_where_others_wait(spent: set[str], waiting: int, *, moves: bool) -> None:
    decision = choose(frozenset(spent), waiting)
    assert isinstance(decision, Assignment)
    assert (decision.group != "g0") == moves
    if moves:
        assert decision.reason in {"spill_share", "return_home"}


def test_a_session_stays_if_its_party_has_had_its_part_of_every_group_that_is_open() -> None:
    groups = [
        GroupView("g0", running=4, waiting=1, max_running=4, capacity=64),
        GroupView("g1", running=4, waiting=4, max_running=4, capacity=8),
    ]
    facts = RequestFacts("m", "key", last_group="g0", spent=frozenset({"g0"}))
    decision = Hybrid().choose(facts, FleetView("m", groups), 0.0)
    assert isinstance(decision, Assignment)
    assert decision.group == "g0"


def test_a_party_may_contest_slots_by_its_weight() -> None:
    counts = []
    for weight in (1.0, 3.0):
        contests = Contests(4.0)
        contests.served("a")
        contests.served("b")
        counts.append(sum(contests.allows("a", 1, 0.0, weight) for _ in range(100)))
    assert counts[1] == 3 * counts[0]
