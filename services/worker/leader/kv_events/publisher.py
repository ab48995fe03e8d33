"""Publishes KV events while a follower wants them, and answers followers.

A call of a follower starts a lease. Without one, nothing is recorded, and only announcements of epochs are
sent, so that no follower takes a restart for the cache that it knew.
"""

import asyncio

import structlog

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.kv_events.contents import KVContents
from services.worker.domain.kv_events.event_log import KVEventLog
from services.worker.leader.context import LeaderContext
from shared import codec, subjects
from shared.bus.api import Message
from shared.errors import RyzError
from shared.kv_hash import NAME_BYTES
from shared.messages import (
    KVEvents,
    KVFollow,
    KVFollowed,
    KVReplay,
    KVReplayed,
    KVSnapshotPage,
    KVSnapshotQuery,
)
from shared.messages.kv.blocks import MAX_NAMES

log = structlog.get_logger(__name__)
LEASE_S = 30.0
GATHER_S = 0.01  # for which changes are gathered into one event
MOST_OF_PAYLOAD = 2  # names take this part of the largest message at most
LEAST_NAMES = 64
MAX_ASKED = 64  # calls of all followers that may wait; those above are dropped, and asked again


class KVEventPublisher:
    """The KV events of one group.

    Args:
        contents: The cache.
    """

    def __init__(self, context: LeaderContext, contents: KVContents) -> None:
        self._group = context.group
        self._model = context.model
        self._bus = context.bus
        self._clock = context.clock
        self._contents = contents
        most = context.bus.max_payload // MOST_OF_PAYLOAD // NAME_BYTES
        self._log = KVEventLog(context.group, context.instance_id, min(MAX_NAMES, max(LEAST_NAMES, most)))
        self._changes: BlockChanges | None = None  # while there is a lease
        self._lease_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        contents.watch_resets(self._begin_epoch)

    def follow(self, _: KVFollow) -> KVFollowed:
        """Starts or prolongs the lease; returns the state of events."""
        self._prolong_lease()
        naming = self._contents.naming()
        return KVFollowed(
            group=self._group,
            model=self._model,
            epoch=self._log.epoch,
            seq=self._log.seq,
            lease_ms=round(LEASE_S * 1000),
            held=self._contents.num_names(),
            block_tokens=naming.block_tokens,
            fingerprint=naming.fingerprint,
            kv_format=naming.kv_format,
            sharing=naming.sharing,
        )

    def replay(self, asked: KVReplay) -> KVReplayed:
        """Returns events that a follower lacks."""
        self._prolong_lease()
        return self._log.replay(asked.epoch, asked.after)

    def snapshot(self, asked: KVSnapshotQuery) -> KVSnapshotPage:
        """Returns a page of a snapshot."""
        self._prolong_lease()
        now = self._clock()
        if asked.snapshot:
            return self._log.snapshot_page(asked.snapshot, asked.offset, now)
        return self._log.young_snapshot(now) or self._log.begin_snapshot(self._contents.names(), now)

    def flush(self) -> None:
        """Publishes what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._changes is not None:
            for events in self._log.append(self._changes.take()):
                self._publish(events)

    def keep_house(self) -> None:
        """Ends a lease that is over, and drops snapshots that are not read; call it now and then."""
        now = self._clock()
        self._log.forget_old(now)
        if self._changes is not None and now > self._lease_until:
            self._changes = None
            self._contents.record(None)
            self._publish(self._log.begin_epoch())  # what happens from now on is in no event

    def close(self) -> None:
        """Ends everything, and says so: the cache is gone with the leader."""
        self._contents.record(None)
        self._changes = None
        self._publish(self._log.begin_epoch())
        if self._timer is not None:
            self._timer.cancel()

    def _prolong_lease(self) -> None:
        self._lease_until = self._clock() + LEASE_S
        if self._changes is None:
            self._log.begin_epoch()
            self._begin_recording()
        else:
            self.flush()  # what is answered is the state now

    def _begin_recording(self) -> None:
        self._changes = BlockChanges(self._flush_soon)
        self._contents.record(self._changes)

    def _begin_epoch(self) -> None:
        """The cache is another one from now on."""
        announcement = self._log.begin_epoch()
        if self._changes is not None:
            self._begin_recording()
        self._publish(announcement)

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def _publish(self, events: KVEvents) -> None:
        """Sends an event. One that cannot be sent is missed by followers, who ask for it."""
        try:
            self._bus.publish_now(subjects.kv_events(self._group), codec.encode(events))
        except RyzError as error:
            log.debug("KV events not sent", seq=events.seq, error=error.message)


class KVEventCalls:
    """The calls of the follow, replay and snapshot subjects."""

    def __init__(self, publisher: KVEventPublisher) -> None:
        self._publisher = publisher

    async def follow(self, asked: KVFollow, _: Message) -> KVFollowed:
        """Has events published for a while."""
        return self._publisher.follow(asked)

    async def replay(self, asked: KVReplay, _: Message) -> KVReplayed:
        """Returns events again."""
        return self._publisher.replay(asked)

    async def snapshot(self, asked: KVSnapshotQuery, _: Message) -> KVSnapshotPage:
        """Returns a page of the cache's blocks."""
        return self._publisher.snapshot(asked)
