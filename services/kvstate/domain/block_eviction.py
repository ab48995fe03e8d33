"""Which KV blocks go first, how many, and when: scores, water marks, quotas. Pure.

A block is of no use without those before it in its sequence. Whoever commits a block commits all before it at
the same time, so the last use never grows along a sequence; with a penalty for depth, scores fall strictly
along it, and taking the lowest score first eats sequences from their tails.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PRIORITY_MS = 600_000  # a step of priority is worth ten minutes of age
DEPTH_MS = 1000  # each block before it makes a block look a second older

# Without `maxmemory` and without a limit of ours: Redis shares its machine with the weights and the KV of
# ranks (`ryz up` starts all on one), and a fork that saves to disk may need its memory twice.
MACHINE_SHARE = 0.25

# Of `maxmemory`, in a Redis for sessions and KV. Blocks with all their overhead leave this much free, and the
# sessions of a tenant take no more, unless a setting says so: so they cost no other tenant its blocks.
SESSION_SHARE = 0.1
_SESSION_OVERHEAD = 1.25  # what Redis's allocator adds to the bytes of a record, at most


def score(used_ms: float, priority: int, depth: int) -> float:
    """The block with the lowest goes first; a block keeps the highest that it ever had.

    Args:
        used_ms: When it was committed.
        priority: Of the sequence, -10 to 10.
        depth: Blocks before it.
    """
    return used_ms + priority * PRIORITY_MS - depth * DEPTH_MS


def limit_bytes(configured: int, share: float, maxmemory: int, machine: int) -> int:
    """Bytes that KV blocks may take: the setting, else a share of what Redis may have, else of the machine's.

    Args:
        configured: The setting; 0: none.
        share: Of `maxmemory`.
        maxmemory: Redis's own limit; 0: none.
        machine: Memory of the machine on which Redis runs; 0: unknown, and then there is no limit.
    """
    return configured or int(share * maxmemory) or int(MACHINE_SHARE * machine)


@dataclass(frozen=True, slots=True)
class WaterMarks:
    """Above `high` of the limit blocks go until `low` of it is left, so that not every commit evicts."""

    limit: int
    high: float = 0.95
    low: float = 0.85

    def excess(self, used: int) -> int:
        """Bytes to free now; a limit of 0 is none."""
        return max(0, used - int(self.low * self.limit)) if self.above(used) else 0

    def above(self, used: int) -> bool:
        """Whether the high mark is passed."""
        return self.limit > 0 and used > self.high * self.limit


def kv_memory(used: int, session_bytes: int) -> int:
    """Bytes of Redis's used memory that are not the sessions': blocks with their facts and overhead."""
    return max(0, used - int(_SESSION_OVERHEAD * session_bytes))


def kv_marks(maxmemory: int, *, with_sessions: bool) -> WaterMarks:
    """The marks for `kv_memory`; without `maxmemory` there is no limit."""
    return WaterMarks(int((1 - SESSION_SHARE) * maxmemory) if with_sessions else maxmemory)


@dataclass(frozen=True, slots=True)
class BlockQuotas:
    """Bytes of KV that a tenant may have, and a session of it; 0: as many as there is room for."""

    tenant_bytes: int = 0
    session_bytes: int = 0


def fitting(sizes: Sequence[int], quota: int) -> int:
    """How many leading blocks fit into `quota` bytes: of a sequence's own blocks its tail goes first."""
    used = 0
    for place, size in enumerate(sizes):
        used += size
        if 0 < quota < used:
            return place
    return len(sizes)


def cut(sizes: Sequence[int], fresh: Sequence[bool], excess: int) -> list[int]:
    """Places of fresh blocks, from the tail on, whose going frees `excess` bytes; all of them if need be."""
    places = []
    for place in range(len(sizes) - 1, -1, -1):
        if excess <= 0:
            break
        if fresh[place]:
            places.append(place)
            excess -= sizes[place]
    return places


def holding_over(*, has_record: bool, deleted: bool, idle_ms: float, grace_ms: float) -> bool:
    """Whether what a session holds is to go: it expired or was deleted. A first turn has no record yet."""
    return not has_record and (deleted or idle_ms >= grace_ms)
