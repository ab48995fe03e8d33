"""Rendezvous hashing: determinism, minimal movement, shares by weight."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.decision import GroupView
from services.router.domain.rendezvous import preferred, score

names = st.lists(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), min_size=2, max_size=8, unique=True)
keys = st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=50)
weights = st.floats(0.1, 10.0)


def views(names: list[str], weight: float = 1.0) -> list[GroupView]:
    return [GroupView(name, weight) for name in names]


@given(names, keys, st.randoms())
def test_the_order_of_groups_does_not_matter(names: list[str], keys: list[str], random: object) -> None:
    for key in keys:
        assert preferred(key, views(names)).name == preferred(key, views(names[::-1])).name


@given(names, keys, st.data())
def test_a_lost_group_moves_only_its_own_sessions(
    names: list[str], keys: list[str], data: st.DataObject
) -> None:
    groups = [GroupView(name, data.draw(weights)) for name in names]
    lost = data.draw(st.sampled_from(names))
    rest = [group for group in groups if group.name != lost]
    for key in keys:
        before = preferred(key, groups).name
        after = preferred(key, rest).name
        assert before in (after, lost)


@given(names, keys, weights)
def test_a_group_that_gains_weight_only_gains_sessions(
    names: list[str], keys: list[str], more: float
) -> None:
    groups = views(names)
    heavier = [GroupView(names[0], 1.0 + more), *groups[1:]]
    for key in keys:
        before, after = preferred(key, groups).name, preferred(key, heavier).name
        assert after in (before, names[0])


def test_sessions_are_spread_by_weight() -> None:
    groups = [GroupView("g0", 1.0), GroupView("g1", 1.0), GroupView("g2", 2.0)]
    chosen = [preferred(f"session-{i}", groups).name for i in range(20_000)]
    for name, share in (("g0", 0.25), ("g1", 0.25), ("g2", 0.5)):
        assert abs(chosen.count(name) / len(chosen) - share) < 0.015


def test_another_process_gives_the_same_scores() -> None:
    code = "from services.router.domain.rendezvous import score; print(score('s-1', 'g0', 1.5).hex())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float.fromhex(out.strip()) == score("s-1", "g0", 1.5)


def test_scores_stay_as_they_are() -> None:
    """Routers of different versions run side by side; a changed hash would move every session."""
    groups = views(["g0", "g1", "g2"])
    assert [preferred(f"session-{i}", groups).name for i in range(8)] == GOLDEN


GOLDEN = ["g0", "g0", "g1", "g2", "g2", "g0", "g2", "g1"]
