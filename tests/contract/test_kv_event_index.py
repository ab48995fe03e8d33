"""The index of a follower equals the group's cache, whatever the network and the group do."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.worker.domain.blocks.changes import NameChanges
from services.worker.domain.kv_events.event_log import MAX_KEPT, KVEventLog
from services.worker.metrics import WorkerMetrics
from shared.client.kv_events.group_view import GroupKVView
from shared.client.kv_events.index import KVEventIndex
from shared.messages import KVEvents, KVReplay, KVReplayed, KVSnapshotPage, KVSnapshotQuery
from tests.kits.chaos.scale import scaled
from tests.kits.kv.kv_event_world import ACTIONS, GROUP, World, block

METRICS = WorkerMetrics(CollectorRegistry())
A, B, C, D = (block(number) for number in range(4))


def event(seq: int, *, epoch: str = "i.1", removed: bytes = b"", stored: bytes = b"") -> KVEvents:
    return KVEvents(group=GROUP, epoch=epoch, seq=seq, removed=removed, stored=stored)


def page(seq: int, names: bytes, *, epoch: str = "i.1", offset: int = 0, total: int = -1) -> KVSnapshotPage:
    total = len(names) // 16 if total < 0 else total
    return KVSnapshotPage(
        epoch=epoch, seq=seq, snapshot=f"{epoch}/{seq}", offset=offset, total=total, names=names
    )


@pytest.fixture
def view() -> GroupKVView:
    """A view that has A and B after event 5."""
    view = GroupKVView(GROUP)
    view.take_events(event(5))
    view.take_page(page(5, A + B), view.changes)
    assert view.is_current
    assert view.names == {A, B}
    return view


async def test_it_equals_the_cache_after_any_accidents() -> None:
    for seed in range(scaled(300, 20_000)):
        world = World(random.Random(seed), METRICS)
        for _ in range(world.chance.randint(10, 150)):
            getattr(world, world.chance.choice(ACTIONS))()
        assert world.settle() < 60
        assert world.index.names(GROUP) == world.contents.blocks, f"seed {seed}"
        world.publisher.close()


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(st.sampled_from(sorted(set(ACTIONS))), max_size=60), seed=st.integers(0, 2**32))
def test_any_order_of_accidents(actions: list[str], seed: int) -> None:
    async def run() -> None:
        world = World(random.Random(seed), METRICS)
        for action in actions:
            getattr(world, action)()
        world.settle()
        assert world.index.names(GROUP) == world.contents.blocks
        world.publisher.close()

    asyncio.run(run())


def test_events_in_any_order_and_twice(view: GroupKVView) -> None:
    view.take_events(event(7, removed=B))
    assert view.names == {A, B}
    assert not view.is_current
    view.take_events(event(7, removed=B))
    view.take_events(event(6, stored=C))
    view.take_events(event(6, stored=C))
    assert (view.names, view.seq) == ({A, C}, 7)
    assert view.is_current


def test_a_gap_is_asked_for(view: GroupKVView) -> None:
    view.take_events(event(8, stored=D))
    wanted = view.wanted()
    assert wanted is not None
    assert wanted.call == KVReplay(epoch="i.1", after=5)
    view.take_replay(KVReplayed(epoch="i.1", seq=8, events=[event(6, stored=C)]), wanted.changes)
    wanted = view.wanted()  # the answer had no room for all
    assert wanted is not None
    assert wanted.call == KVReplay(epoch="i.1", after=6)
    view.take_replay(KVReplayed(epoch="i.1", seq=8, events=[event(7, removed=A)]), wanted.changes)
    assert view.names == {B, C, D}
    assert view.wanted() is None


def test_a_lost_last_event_is_found_by_the_position(view: GroupKVView) -> None:
    assert view.take_position("i.1", 6, view.changes)
    assert not view.is_current
    wanted = view.wanted()
    assert wanted is not None
    assert wanted.call == KVReplay(epoch="i.1", after=5)


def test_a_restart_with_the_number_that_was_expected_is_none_of_continuity(view: GroupKVView) -> None:
    view.take_events(event(6, epoch="j.1", stored=C))
    assert view.names == set()
    wanted = view.wanted()
    assert wanted is not None
    assert wanted.call == KVSnapshotQuery()
    view.take_page(page(6, C, epoch="j.1"), wanted.changes)
    assert view.names == {C}


def test_what_a_dead_leader_sent_comes_too_late(view: GroupKVView) -> None:
    view.take_events(event(0, epoch="j.1"))
    changes = view.changes
    view.take_page(page(0, b"", epoch="j.1"), changes)
    view.take_events(event(6, stored=C))
    view.take_page(page(5, A + B), changes - 1)
    assert not view.take_position("i.1", 6, changes - 1)
    assert (view.epoch, view.names) == ("j.1", set())
    assert view.is_current


def test_a_false_sign_of_another_epoch_is_corrected_by_the_next_answer(view: GroupKVView) -> None:
    view.take_events(event(3, epoch="old.1"))  # of one that ended before this view began
    wanted = view.wanted()
    assert wanted is not None
    view.take_page(page(5, A + B), wanted.changes)
    assert (view.epoch, view.names) == ("i.1", {A, B})
    view.take_events(event(6, stored=C))
    view.take_events(event(4, epoch="old.1"))
    assert view.names == {A, B, C}


def test_events_cross_a_snapshot() -> None:
    view = GroupKVView(GROUP)
    view.take_events(event(4, stored=A))
    wanted = view.wanted()
    assert wanted is not None
    view.take_page(page(5, A + B, total=3), wanted.changes)
    view.take_events(event(6, removed=A))
    view.take_events(event(7, stored=D))
    wanted = view.wanted()
    assert wanted is not None
    assert wanted.call == KVSnapshotQuery(snapshot="i.1/5", offset=2)
    view.take_page(page(5, C, offset=2, total=3), wanted.changes)
    assert (view.names, view.seq) == ({B, C, D}, 7)
    assert view.is_current


def test_a_snapshot_that_is_not_kept_any_more_begins_anew() -> None:
    view = GroupKVView(GROUP)
    view.take_events(event(4))
    view.take_page(page(5, A + B, total=3), view.changes)
    view.take_page(KVSnapshotPage(epoch="i.1", seq=9, gone=True), view.changes)
    wanted = view.wanted()
    assert wanted is not None
    assert wanted.call == KVSnapshotQuery()


def test_events_that_are_not_kept_any_more_need_a_snapshot(view: GroupKVView) -> None:
    view.take_position("i.1", 900, view.changes)
    view.take_replay(KVReplayed(epoch="i.1", seq=900, gone=True), view.changes)
    wanted = view.wanted()
    assert wanted is not None
    assert wanted.call == KVSnapshotQuery()


def test_leading_blocks_are_found_in_each_group() -> None:
    index = KVEventIndex()
    for group, names in (("g0", A + B + D), ("g1", A), ("g2", B)):
        index.take_events(KVEvents(group=group, epoch="e", seq=0))
        (wanted,) = (one for one in index.wanted() if one.group == group)
        index.take_answer(wanted, page(0, names, epoch="e"))
    assert index.find([A, B, C, D]) == {"g0": 2, "g1": 1}
    index.forget("g0")
    assert index.find([A, B]) == {"g1": 1}
    assert index.names("g0") == frozenset()


def test_a_log_keeps_so_many_events_and_says_when_they_are_gone() -> None:
    log = KVEventLog(GROUP, "i", 64)
    for number in range(MAX_KEPT + 10):
        log.append(NameChanges([], [block(number)]))
    assert log.replay(log.epoch, 9).gone
    assert not log.replay(log.epoch, 10).gone
    assert log.replay("other", log.seq).gone
    assert log.replay(log.epoch, log.seq + 1).gone
    last = log.replay(log.epoch, log.seq)
    assert (last.events, last.gone) == ([], False)


def test_what_one_message_may_not_name_is_parted() -> None:
    log = KVEventLog(GROUP, "i", 4)
    events = log.append(NameChanges([block(n) for n in range(6)], [block(n) for n in range(10, 15)]))
    assert [len(one.removed + one.stored) // 16 for one in events] == [4, 4, 3]
    assert [one.seq for one in events] == [1, 2, 3]
    assert events[1].removed + events[1].stored == block(4) + block(5) + block(10) + block(11)
