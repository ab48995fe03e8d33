"""When each op of a step was computed, on each thread of this rank: recorded during a profile only."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LINE = 8  # numbers of a cache line


class OpName(NamedTuple):
    """An op of a forward pass.

    Attributes:
        kind: Of the times of a step: linears, attention, collectives, or rows.
        layer: Its layer; -1: outside of layers.
    """

    name: str
    kind: str
    layer: int = -1


class OpSpans:
    """A bounded buffer of spans.

    Args:
        capacity: Spans of each thread; later ones are counted only.

    Attributes:
        spans: [threads, capacity, 3]: begin and end in nanoseconds of the monotonic clock, and the index of
            the op among `Compute.op_names`.
        counts: [threads, 8], of which the first column counts.
    """

    def __init__(self, threads: int, capacity: int) -> None:
        self.capacity = capacity
        self.spans: NDArray[np.int64] = np.zeros((threads, capacity, 3), np.int64)
        self.counts: NDArray[np.int64] = np.zeros((threads, _LINE), np.int64)

    def add(self, index: int, begin_ns: int, end_ns: int) -> None:
        """Adds a span of the first thread; compiled code adds the others."""
        at = int(self.counts[0, 0])
        self.counts[0, 0] = at + 1
        if at < self.capacity:
            self.spans[0, at] = begin_ns, end_ns, index

    @property
    def left_out(self) -> int:
        """Number of spans beyond the capacity."""
        return int(np.maximum(self.counts[:, 0] - self.capacity, 0).sum())

    def packed(self) -> bytes:
        """Returns the spans as rows of four numbers of 8 bytes: thread, begin, end, index."""
        parts = []
        for thread, count in enumerate(np.minimum(self.counts[:, 0], self.capacity)):
            own = self.spans[thread, :count]
            parts.append(np.column_stack((np.full(count, thread, np.int64), own)))
        return np.concatenate(parts).tobytes()
