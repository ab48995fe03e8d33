"""What a follower knows of one group's KV cache, and what it has to ask for. Pure.

Events may be lost, come twice, or come in another order than they were sent, and answers to calls may be
older than events that came before them. The rules:

- Numbers mean something within an epoch only. With the first sign of another epoch, all blocks are forgotten.
- A view is based on a snapshot of its epoch, and on every event behind it without a gap.
- An epoch that was left does not come back by an event, which may be late. It does by an answer that was
  asked for after it was left: then the sign of the newer one was false.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from shared import kv_hash
from shared.messages import KVEvents, KVReplay, KVReplayed, KVSnapshotPage, KVSnapshotQuery

MAX_EARLY = 4096  # events behind a gap; those beyond are asked for again
MAX_LEFT = 16


class WantedCall(NamedTuple):
    """A call that a view needs answered.

    Attributes:
        call: The call to make.
        changes: How often the view had changed its epoch when it wanted this.
    """

    group: str
    call: KVReplay | KVSnapshotQuery
    changes: int


@dataclass(slots=True)
class _Snapshot:
    """A snapshot of which some pages are there."""

    epoch: str
    seq: int
    snapshot_id: str
    total: int
    names: list[bytes] = field(default_factory=list)


class GroupKVView:
    """One group.

    Attributes:
        epoch: The present one, as far as is known; empty: none is.
        seq: Of the last event that is in `names`.
        names: Blocks in the group's cache.
        changes: How often the epoch changed.
        snapshots: How many were taken.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.epoch = ""
        self.seq = 0
        self.names: set[bytes] = set()
        self.changes = 0
        self.snapshots = 0
        self._is_based = False
        self._last_known = 0
        self._early: dict[int, KVEvents] = {}
        self._snapshot: _Snapshot | None = None
        self._left: deque[str] = deque(maxlen=MAX_LEFT)

    @property
    def is_current(self) -> bool:
        """Whether `names` has all events of which this view has heard."""
        return self._is_based and self.seq == self._last_known

    def wanted(self) -> WantedCall | None:
        """Returns the call to make next; None while nothing is missing."""
        if self.is_current:
            return None
        if self._is_based:
            return WantedCall(self.group, KVReplay(epoch=self.epoch, after=self.seq), self.changes)
        begun = self._snapshot
        query = (
            KVSnapshotQuery()
            if begun is None
            else KVSnapshotQuery(snapshot=begun.snapshot_id, offset=len(begun.names))
        )
        return WantedCall(self.group, query, self.changes)

    def take_events(self, events: KVEvents) -> None:
        """Takes an event from the bus."""
        if events.epoch != self.epoch:
            if events.epoch in self._left:
                return  # late
            self._begin_epoch(events.epoch)
        self._add(events)
        self._apply()

    def take_position(self, epoch: str, seq: int, changes: int) -> bool:
        """Takes the number of the last event; False if that may be from before the present epoch.

        Args:
            epoch: The group's.
            seq: Of its last event.
            changes: Those of this view when the group was asked.
        """
        if not self._may_trust(epoch, changes):
            return False
        self._last_known = max(self._last_known, seq)
        return True

    def take_replay(self, replayed: KVReplayed, changes: int) -> None:
        """Takes an answer to `KVReplay`; `changes`: those of `wanted`."""
        if not self._may_trust(replayed.epoch, changes):
            return
        self._last_known = max(self._last_known, replayed.seq)
        for events in replayed.events:
            if events.epoch == self.epoch:
                self._add(events)
        self._apply()
        if replayed.gone and not self.is_current:
            self._is_based, self._snapshot = False, None

    def take_page(self, page: KVSnapshotPage, changes: int) -> None:
        """Takes an answer to `KVSnapshotQuery`; `changes`: those of `wanted`."""
        if not self._may_trust(page.epoch, changes) or self._is_based:
            return
        self._last_known = max(self._last_known, page.seq)
        begun = self._snapshot
        if page.gone:
            self._snapshot = None
            return
        if begun is None and page.offset == 0:
            begun = self._snapshot = _Snapshot(page.epoch, page.seq, page.snapshot, page.total)
        if begun is None or page.snapshot != begun.snapshot_id or page.offset != len(begun.names):
            return  # of another snapshot, or a second time
        begun.names += kv_hash.split(page.names)
        if len(begun.names) >= begun.total:
            self.names, self.seq, self._is_based, self._snapshot = set(begun.names), begun.seq, True, None
            self.snapshots += 1
            self._apply()
        elif not page.names:
            self._snapshot = None  # it does not go on: another one

    def count_leading(self, names: list[bytes]) -> int:
        """Returns how many of these names are there, from the first on without a gap."""
        known, count = self.names, 0
        for name in names:
            if name not in known:
                break
            count += 1
        return count

    def _may_trust(self, epoch: str, changes: int) -> bool:
        """Whether an answer is of the present epoch, or of a later one, which it begins."""
        if epoch == self.epoch:
            return True
        if changes != self.changes:
            return False  # the answer may be from before the change
        self._begin_epoch(epoch)
        return True

    def _begin_epoch(self, epoch: str) -> None:
        if epoch in self._left:
            self._left.remove(epoch)
        if self.epoch:
            self._left.append(self.epoch)
        self.epoch = epoch
        self.changes += 1
        self.seq = self._last_known = 0
        self.names = set()
        self._is_based, self._snapshot = False, None
        self._early.clear()

    def _add(self, events: KVEvents) -> None:
        self._last_known = max(self._last_known, events.seq)
        if not self._is_based or events.seq > self.seq:
            self._early[events.seq] = events
            if len(self._early) > MAX_EARLY:
                del self._early[max(self._early)]

    def _apply(self) -> None:
        """Applies the events that follow on the last one."""
        if not self._is_based:
            return
        early = self._early
        while (events := early.pop(self.seq + 1, None)) is not None:
            self.names.difference_update(kv_hash.split(events.removed))
            self.names.update(kv_hash.split(events.stored))
            self.seq = events.seq
        for seq in [seq for seq in early if seq <= self.seq]:
            del early[seq]
