"""The numbered history of one KV cache. Pure.

Within an epoch, the events up to a number make the state of the cache after it. The last ones are kept for
followers that missed them. A new epoch makes all numbers and snapshots of the one before void.
"""

from collections import deque
from collections.abc import Sequence
from itertools import count, islice

from services.worker.domain.blocks.changes import NameChanges
from services.worker.domain.kv_events.snapshots import Snapshots
from shared.kv_hash import NAME_BYTES
from shared.messages import KVEvents, KVReplayed, KVSnapshotPage

MAX_KEPT = 4096
MAX_KEPT_BYTES = 4 << 20
EVENT_BYTES = 320  # of an event beside its names, at most


class KVEventLog:
    """Numbers the changes of a group's cache.

    Args:
        instance_id: No other leader of this group has or had it.
        max_names: Names in one message at most.

    Attributes:
        epoch: The present one.
        seq: Number of its last event.
    """

    def __init__(self, group: str, instance_id: str, max_names: int) -> None:
        self._group = group
        self._instance_id = instance_id
        self._max_names = max_names
        self._numbers = count(1)
        self._kept: deque[KVEvents] = deque()
        self._kept_bytes = 0
        self._snapshots = Snapshots()
        self.epoch = ""
        self.seq = 0
        self.begin_epoch()

    def begin_epoch(self) -> KVEvents:
        """Begins an epoch; returns its announcement."""
        self.epoch, self.seq = f"{self._instance_id}.{next(self._numbers)}", 0
        self._kept.clear()
        self._kept_bytes = 0
        self._snapshots.clear()
        return KVEvents(group=self._group, epoch=self.epoch, seq=0)

    def append(self, changes: NameChanges) -> list[KVEvents]:
        """Numbers changes; returns them as one event, or more if there are too many for one message."""
        removed, stored, most = changes.removed, changes.stored, self._max_names
        events: list[KVEvents] = []
        while removed or stored:
            gone, removed = removed[:most], removed[most:]
            room = most - len(gone)
            come, stored = stored[:room], stored[room:]
            self.seq += 1
            events.append(
                KVEvents(
                    group=self._group,
                    epoch=self.epoch,
                    seq=self.seq,
                    removed=b"".join(gone),
                    stored=b"".join(come),
                )
            )
        for event in events:
            self._keep(event)
        return events

    def replay(self, epoch: str, after: int) -> KVReplayed:
        """Returns the events of an epoch behind a number, as many as fit into a message."""
        oldest = self._kept[0].seq if self._kept else self.seq + 1
        if epoch != self.epoch or not oldest - 1 <= after <= self.seq:
            return KVReplayed(epoch=self.epoch, seq=self.seq, gone=True)
        events: list[KVEvents] = []
        room = self._max_names * NAME_BYTES
        for event in islice(self._kept, after + 1 - oldest, None):
            room -= _size(event)
            if events and room < 0:
                break
            events.append(event)
        return KVReplayed(epoch=self.epoch, seq=self.seq, events=events)

    def begin_snapshot(self, names: Sequence[bytes], now: float) -> KVSnapshotPage:
        """Returns the first page of a snapshot of the cache, which has these names after the last event."""
        snapshot = self._snapshots.add(self.epoch, self.seq, names, now)
        return snapshot.page(0, self._max_names)

    def young_snapshot(self, now: float) -> KVSnapshotPage | None:
        """Returns the first page of one that was taken just now, if the events behind it are still kept."""
        oldest = self._kept[0].seq if self._kept else self.seq + 1
        snapshot = self._snapshots.young(now)
        if snapshot is None or snapshot.seq + 1 < oldest:
            return None
        return snapshot.page(0, self._max_names)

    def snapshot_page(self, snapshot_id: str, offset: int, now: float) -> KVSnapshotPage:
        """Returns a later page."""
        snapshot = self._snapshots.find(snapshot_id, now)
        if snapshot is None:
            return KVSnapshotPage(epoch=self.epoch, seq=self.seq, gone=True)
        return snapshot.page(offset, self._max_names)

    def forget_old(self, now: float) -> None:
        """Drops snapshots of which no page was asked for lately."""
        self._snapshots.forget_old(now)

    def _keep(self, event: KVEvents) -> None:
        self._kept.append(event)
        self._kept_bytes += _size(event)
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= _size(self._kept.popleft())


def _size(event: KVEvents) -> int:
    return EVENT_BYTES + len(event.removed) + len(event.stored)
