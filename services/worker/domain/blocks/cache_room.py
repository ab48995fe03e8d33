"""Decides how many KV blocks of a group may hold content while the host's memory is short. Pure.

Below a margin of available memory the limit falls, as fast as it helps; above a second one it rises slowly,
after a while in which it did not fall. So caches make room before the system ends a process.
"""

from dataclasses import dataclass
from typing import NamedTuple

QUIET_S = 10.0  # without a fall before the limit rises
_FALL, _RISE = 4, 16  # in one step by at most these parts of all blocks
_LEAST, _MOST, _SHARE = 64 << 20, 1 << 30, 32  # of the lower margin: bytes, and part of all memory


class CacheUse(NamedTuple):
    """A group's KV cache.

    Attributes:
        num_blocks: All of them.
        num_held: Those with content.
        floor: As many as the longest request needs.
        block_bytes: Memory of one, on all ranks.
    """

    num_blocks: int
    num_held: int
    floor: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Margins:
    """Available bytes below which the limit falls, and above which it rises."""

    low: int
    high: int

    @classmethod
    def of(cls, total_bytes: int) -> "Margins":
        """The margins for a machine or container with so much memory."""
        low = min(_MOST, max(_LEAST, total_bytes // _SHARE))
        return cls(low, 2 * low)


class CacheRoom:
    """The limit of one group, in blocks.

    Attributes:
        limit: The last one; None before the first.
    """

    def __init__(self, margins: Margins) -> None:
        self.limit: int | None = None
        self._margins = margins
        self._fell_at = -QUIET_S

    def next_limit(self, now_s: float, available_bytes: int, use: CacheUse) -> int:
        """Returns the limit from now on."""
        low, high = self._margins.low, self._margins.high
        limit = use.num_blocks if self.limit is None else min(self.limit, use.num_blocks)
        if available_bytes < low:
            self._fell_at = now_s
            # blocks that never had content have no memory
            lacking = -(-((low + high) // 2 - available_bytes) // use.block_bytes)
            limit = min(limit, use.num_held) - min(lacking, -(-use.num_blocks // _FALL))
        elif available_bytes > high and now_s - self._fell_at >= QUIET_S:
            spare = (available_bytes - high) // use.block_bytes
            limit += min(spare, -(-use.num_blocks // _RISE))
        self.limit = min(use.num_blocks, max(limit, use.floor))
        return self.limit
