"""What a pool of blocks records of its names, and what a publisher does with it."""

import random
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.manager import BlockManager
from services.worker.leader.kv_events.publisher import LEASE_S, KVEventPublisher
from services.worker.metrics import WorkerMetrics
from shared import kv_hash
from shared.messages import KVFollow, KVReplay, KVSnapshotQuery
from tests.kits.kv.kv_event_world import EventBus, SetContents, block, context
from tests.kits.waiting import until

METRICS = WorkerMetrics(CollectorRegistry())


@pytest.mark.parametrize("seed", range(20))
def test_changes_are_the_difference_of_two_states(seed: int) -> None:
    chance, blocks, called = random.Random(seed), BlockManager(24, region=2), list[None]()
    known: set[bytes] = set()
    changes = BlockChanges(lambda: called.append(None))
    blocks.record_changes(changes)
    tables: dict[int, list[bytes]] = {}
    for number in range(200):
        action = chance.random()
        if action < 0.5 and len(tables) < 4:
            names = [block(chance.randrange(12) * 100 + depth) for depth in range(chance.randint(1, 5))]
            if blocks.allocate(number, len(names) * 16 + 1, names) is not None:
                blocks.register(number, 0, names)
                tables[number] = names
        elif action < 0.8 and tables:
            blocks.release(tables.popitem()[0])
        elif action < 0.85 and tables:
            blocks.forget(next(iter(tables)))
        elif action < 0.9:
            blocks.drop([block(chance.randrange(12) * 100)])
        elif action < 0.95:
            blocks.set_limit(chance.choice((12, 18, 24)))
        if chance.random() < 0.3:
            before = called.copy()
            removed, stored = changes.take()
            assert bool(removed or stored) <= bool(before)
            assert known.issuperset(removed)
            assert known.isdisjoint(stored)
            known = known.difference(removed).union(stored)
            assert known == set(blocks.cached_names())
            assert blocks.num_names == len(known)
            called.clear()
        blocks.check_invariants()
    blocks.record_changes(None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def publisher(clock: Callable[[], float]) -> tuple[KVEventPublisher, SetContents, EventBus]:
    bus, contents = EventBus(), SetContents()
    return KVEventPublisher(context(bus, METRICS, "i", clock), contents), contents, bus


async def test_nothing_is_recorded_or_sent_unless_a_follower_asks() -> None:
    clock = Clock()
    events, contents, bus = publisher(clock)
    contents.store(block(1))
    events.flush()
    assert bus.sent == []
    contents.reset()
    assert [(one.seq, one.stored) for one in bus.sent] == [(0, b"")]  # a restart is always announced
    followed = events.follow(KVFollow())
    assert (followed.seq, followed.held, followed.lease_ms) == (0, 0, 1000 * LEASE_S)
    contents.store(block(2))
    events.flush()
    assert [(one.epoch, one.seq, one.stored) for one in bus.sent[1:]] == [(followed.epoch, 1, block(2))]
    events.close()


async def test_a_lease_ends_and_with_it_the_epoch() -> None:
    clock = Clock()
    events, contents, bus = publisher(clock)
    first = events.follow(KVFollow())
    contents.store(block(1))
    clock.now += LEASE_S - 1
    events.keep_house()
    assert not events.replay(KVReplay(epoch=first.epoch, after=0)).gone
    clock.now += LEASE_S + 1
    events.keep_house()
    assert bus.sent[-1].epoch != first.epoch
    contents.store(block(2))
    events.flush()
    assert bus.sent[-1].seq == 0
    assert events.replay(KVReplay(epoch=first.epoch, after=1)).gone
    page = events.snapshot(KVSnapshotQuery())
    assert set(kv_hash.split(page.names)) == {block(1), block(2)}
    events.close()


async def test_a_timer_publishes_what_was_gathered() -> None:
    events, contents, bus = publisher(Clock())
    events.follow(KVFollow())
    contents.store(block(1))
    contents.store(block(2))
    contents.remove(block(1))
    await until(lambda: bool(bus.sent))
    (sent,) = bus.sent
    assert (sent.seq, sent.stored, sent.removed) == (1, block(2), b"")
    events.close()


async def test_events_that_the_broker_did_not_take_are_replayed() -> None:
    events, contents, bus = publisher(Clock())
    followed = events.follow(KVFollow())
    bus.away = True
    contents.store(block(1))
    events.flush()
    contents.store(block(2))
    bus.away = False
    replayed = events.replay(KVReplay(epoch=followed.epoch, after=0))
    assert [one.stored for one in replayed.events] == [block(1), block(2)]
    events.close()


async def test_followers_that_come_together_share_a_snapshot_and_old_ones_go() -> None:
    clock = Clock()
    events, contents, _ = publisher(clock)
    contents.store(block(1))
    first = events.snapshot(KVSnapshotQuery())
    contents.store(block(2))
    clock.now += 0.5
    assert events.snapshot(KVSnapshotQuery()).snapshot == first.snapshot
    clock.now += 2.0
    second = events.snapshot(KVSnapshotQuery())
    assert second.snapshot != first.snapshot
    assert second.total == 2
    clock.now += 11.0
    events.keep_house()
    assert events.snapshot(KVSnapshotQuery(snapshot=second.snapshot, offset=1)).gone
    events.close()
