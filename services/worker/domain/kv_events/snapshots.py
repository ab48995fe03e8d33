"""Snapshots of a KV cache that followers read page by page, while the cache goes on changing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages import KVSnapshotPage

MAX_SNAPSHOTS = 4  # a list of references each: 8 bytes a block
YOUNG_S = 1.0  # another follower gets the same one
IDLE_S = 10.0  # between two pages


@dataclass(slots=True)
class Snapshot:
    """The names in a cache after event `seq` of an epoch.

    Attributes:
        used_at: When a page of it was last read.
    """

    snapshot_id: str
    epoch: str
    seq: int
    names: Sequence[bytes]
    taken_at: float
    used_at: float

    def page(self, offset: int, max_names: int) -> KVSnapshotPage:
        """Returns the page that begins with that name."""
        return KVSnapshotPage(
            epoch=self.epoch,
            seq=self.seq,
            snapshot=self.snapshot_id,
            offset=offset,
            total=len(self.names),
            names=b"".join(self.names[offset : offset + max_names]),
        )


class Snapshots:
    """The last few snapshots of one epoch, the oldest first."""

    def __init__(self) -> None:
        self._by_id: dict[str, Snapshot] = {}

    def add(self, epoch: str, seq: int, names: Sequence[bytes], now: float) -> Snapshot:
        """Keeps a snapshot; the one that was not read for longest makes room."""
        while len(self._by_id) >= MAX_SNAPSHOTS:
            del self._by_id[min(self._by_id.values(), key=lambda one: one.used_at).snapshot_id]
        snapshot = Snapshot(f"{epoch}/{seq}", epoch, seq, names, now, now)
        self._by_id[snapshot.snapshot_id] = snapshot
        return snapshot

    def young(self, now: float) -> Snapshot | None:
        """Returns one that was taken just now."""
        last = next(reversed(self._by_id.values()), None)
        if last is None or now - last.taken_at > YOUNG_S:
            return None
        last.used_at = now
        return last

    def find(self, snapshot_id: str, now: float) -> Snapshot | None:
        """Returns one by its name."""
        snapshot = self._by_id.get(snapshot_id)
        if snapshot is not None:
            snapshot.used_at = now
        return snapshot

    def forget_old(self, now: float) -> None:
        """Drops those of which no page was read lately."""
        for snapshot in list(self._by_id.values()):
            if now - snapshot.used_at > IDLE_S:
                del self._by_id[snapshot.snapshot_id]

    def clear(self) -> None:
        """Drops all."""
        self._by_id.clear()
