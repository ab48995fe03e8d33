"""Decides which KV blocks are evicted first, how many, and when: scores, water marks, quotas. Pure.

A block is of no use without the blocks before it in its sequence. A leader that commits a block commits all
blocks before it at the same time, so the time of last use never grows along a sequence. With a penalty for
depth, scores fall strictly along it, and eviction by lowest score removes sequences from their tails.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.setting_types import AnyBytes, Share

PRIORITY_MS = 600_000  # a step of priority is worth ten minutes of age
DEPTH_MS = 1000  # each block before it makes a block count as a second older

# The limit without `maxmemory` and without a setting. Redis may share its machine with the weights and the KV
# of ranks (`ryz up` starts all on one), and a fork that saves to disk may need its memory twice.
MACHINE_SHARE = 0.25

# Share of `maxmemory` in a Redis for sessions and KV. Blocks with all their overhead leave this much free,
# and the sessions of a tenant take no more unless a setting says so, so that they cost no other tenant its
# blocks.
SESSION_SHARE = 0.1
_SESSION_OVERHEAD = 1.25  # what Redis's allocator adds to the bytes of a record, at most


def score(used_ms: float, priority: int, depth: int) -> float:
    """Returns a score: the block with the lowest is evicted first, and a block keeps its highest one.

    Args:
        used_ms: When it was committed.
        priority: Of the sequence, -10 to 10.
        depth: Blocks before it.
    """
    return used_ms + priority * PRIORITY_MS - depth * DEPTH_MS


def limit_bytes(configured: int, share: float, maxmemory: int, machine: int) -> int:
    """Returns the bytes that KV blocks may take: as configured, else of `maxmemory`, else of the machine.

    Args:
        configured: The setting; 0: none.
        share: Of `maxmemory`.
        maxmemory: Redis's own limit; 0: none.
        machine: Memory of the machine on which Redis runs; 0: unknown, and then there is no limit.
    """
    return configured or int(share * maxmemory) or int(MACHINE_SHARE * machine)


@dataclass(frozen=True, slots=True)
class WaterMarks:
    """Eviction begins above `high` of the limit and ends at `low` of it, so that not every commit evicts."""

    limit: int
    high: float = 0.95
    low: float = 0.85

    def excess(self, used: int) -> int:
        """Returns the bytes to free now; a limit of 0 means no limit."""
        return max(0, used - int(self.low * self.limit)) if self.above(used) else 0

    def above(self, used: int) -> bool:
        """Returns whether the high mark is passed."""
        return self.limit > 0 and used > self.high * self.limit


def kv_memory(used: int, session_bytes: int) -> int:
    """Returns the bytes of Redis's used memory of blocks, with facts and overhead: all but sessions."""
    return max(0, used - int(_SESSION_OVERHEAD * session_bytes))


def kv_marks(maxmemory: int, *, with_sessions: bool) -> WaterMarks:
    """Returns the marks for `kv_memory`; without `maxmemory` there is no limit."""
    return WaterMarks(int((1 - SESSION_SHARE) * maxmemory) if with_sessions else maxmemory)


@dataclass(frozen=True, kw_only=True)
class BlockLimits:
    """The bytes that KV blocks may have. `KVStateSettings` inherits the fields, so they are also settings."""

    kv_max_bytes: AnyBytes = 0
    """Bytes of KV blocks in Redis; 0: `RYZ_KV_REDIS_SHARE` of its `maxmemory`, or a quarter of its machine's
    memory if it has no such limit."""
    kv_redis_share: Share = 0.8
    """Share of Redis's `maxmemory` for KV blocks."""
    kv_tenant_bytes: AnyBytes = 0
    """Bytes of KV blocks of a tenant; 0: as many as fit."""
    kv_session_bytes: AnyBytes = 0
    """Bytes of KV blocks of one session; 0: as many as fit."""


def fitting(sizes: Sequence[int], quota: int) -> int:
    """Returns how many leading blocks of a sequence fit into `quota` bytes; 0: no quota."""
    used = 0
    for index, size in enumerate(sizes):
        used += size
        if 0 < quota < used:
            return index
    return len(sizes)


def cut(sizes: Sequence[int], fresh: Sequence[bool], excess: int) -> list[int]:
    """Returns indices of fresh blocks to delete, from the tail on, until `excess` bytes are free."""
    indices = []
    for index in range(len(sizes) - 1, -1, -1):
        if excess <= 0:
            break
        if fresh[index]:
            indices.append(index)
            excess -= sizes[index]
    return indices
