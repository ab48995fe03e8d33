"""The leader's side of the host tier: what of a prompt the groups of this host have in shared memory.

A lookup is a few reads of shared memory, without a message. Ranks copy the blocks (`FetchBlocks`).
"""

from collections.abc import Callable, Sequence

import structlog

from services.worker.host_kv.host_pool import HostPool
from services.worker.host_kv.pool_directory import DeadSegments, UnsafeDirectory, open_directory

log = structlog.get_logger(__name__)
SWEEP_S = 60.0  # between checks for segments of dead processes
REFRESH_S = 0.002  # requests of a burst share one check for new blocks


class HostLookup:
    """Without a directory, or with one that cannot be used, it finds nothing.

    Args:
        directory: Of the host tier; empty: there is none.
        clock: Returns monotonic seconds.
    """

    def __init__(self, directory: str, clock: Callable[[], float]) -> None:
        self._pool: HostPool | None = None
        self._dead: DeadSegments | None = None
        self._swept = clock()
        self._refreshed = -REFRESH_S
        self._clock = clock
        if directory:
            try:
                pool_dir = open_directory(directory)
            except (UnsafeDirectory, OSError) as error:
                log.warning("no KV blocks are kept in the host's memory", why=str(error))
                return
            self._pool, self._dead = HostPool(pool_dir), DeadSegments(pool_dir, clock)

    def count(self, names: Sequence[bytes], num_heads: int) -> int:
        """Returns how many leading blocks the host has with all heads of the model."""
        if self._pool is None or not names:
            return 0
        now = self._clock()
        if now - self._refreshed >= REFRESH_S:
            self._refreshed = now
            self._pool.refresh()
        return self._pool.count(names, num_heads)

    def revoke(self, names: Sequence[bytes]) -> None:
        """Makes blocks of a deleted session unreadable for all groups of the host."""
        if self._pool is not None:
            self._pool.refresh()
            self._pool.revoke(names)

    def sweep(self) -> None:
        """Removes what dead processes left long ago, once a minute."""
        now = self._clock()
        if self._dead is not None and now - self._swept >= SWEEP_S:
            self._swept = now
            self._dead.sweep()

    def describe(self) -> dict[str, object] | None:
        """Returns what `ryz status` shows; None without a host tier."""
        if self._pool is None:
            return None
        self._pool.refresh()
        return {"segments": self._pool.num_segments, "bytes": self._pool.num_bytes}
