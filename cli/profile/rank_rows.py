"""A rank's recording as arrays, and what its collectives say of its clock. Pure."""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.worker.rank_protocol.trace_messages import BlockMove, RankTrace
from shared.messages import RecordedRank
from shared.telemetry.clock_estimate import ClockOffset

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankRows:
    """What a rank recorded, on the leader's clock.

    Attributes:
        ops: Name, kind and layer of each op.
        phases: Step id, begin, and the ends of the phases; [steps, 7].
        spans: Thread, begin, end, place of the op; [spans, 4], by begin.
        moves: KV blocks that were moved.
        left_out: Spans that were too many.
    """

    rank: RecordedRank
    ops: list[tuple[str, str, int]]
    phases: Rows
    spans: Rows
    moves: list[BlockMove]
    left_out: int

    @property
    def collectives(self) -> Rows:
        """Step, begin, end and op of each collective of the first thread whose step is known; [.., 4]."""
        kinds = np.array([kind == "collectives" for _, kind, _ in self.ops], bool)
        own = self.spans[(self.spans[:, 0] == 0) & kinds[self.spans[:, 3]]] if len(self.spans) else self.spans
        steps = np.searchsorted(self.phases[:, 1], own[:, 1], side="right") - 1
        known = steps >= 0
        ids = self.phases[steps[known], 0]
        return np.column_stack((ids, own[known, 1:4]))


def rank_rows(rank: RecordedRank) -> RankRows:
    """Decodes a rank's recording, and moves it to the leader's clock where the rank is on another host."""
    trace = msgspec.msgpack.decode(rank.trace, type=RankTrace)
    ahead = (rank.offset_ns or 0) if rank.host else 0
    phases = np.frombuffer(trace.phases, np.int64).reshape(-1, 7).copy()
    phases[:, 1:] -= ahead
    spans = np.frombuffer(trace.spans, np.int64).reshape(-1, 4).copy()
    spans[:, 1:3] -= ahead
    spans = spans[np.lexsort((spans[:, 1], spans[:, 0]))]
    moves = [one._replace(end_ns=one.end_ns - ahead) for one in trace.moves]
    return RankRows(rank, trace.ops, phases, spans, moves, trace.left_out)


def clock_of_collectives(one: RankRows, other: RankRows) -> tuple[ClockOffset, int] | None:
    """How far the clock of `other` is ahead of that of `one`, and of how many collectives this was found.

    No rank leaves a collective before the last one has entered it. So each collective is a ping: it gives an
    interval that holds the difference of the clocks. None: no collectives are known to be the same.
    """
    left, right = one.collectives, other.collectives
    shared = np.intersect1d(left[:, 0], right[:, 0])
    left, right = (rows[np.isin(rows[:, 0], shared)] for rows in (left, right))
    if not len(left) or len(left) != len(right):
        return None
    low, high = int((right[:, 1] - left[:, 2]).max()), int((right[:, 2] - left[:, 1]).min())
    if low > high:
        return None  # the collectives of the two are not the same ones
    return ClockOffset((low + high) // 2, (high - low + 1) // 2), len(left)
