"""The ops of a pass in their order, as the lists that the kernels run."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from services.worker.engine.native.structs.ops import Op, OpKind, RankBarrierOp, op_names
from services.worker.engine.rank.op_spans import OpName

OpList = ctypes.Array[ctypes.c_void_p]


class Segment(NamedTuple):
    """Ops without a barrier, and what the ranks add up after them: [MAX_ROWS, numbers].

    `first` is the index of the first op; behind the last one is that of the barrier.
    """

    ops: OpList
    sums: Tensor | None = None
    first: int = 0


class OpLists:
    """Ops, and everything that they point to."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._head = 0  # number of ops before the head
        self._layers: list[int] = []  # the first op of each layer
        self._sums: dict[int, Tensor | None] = {}  # that the collectives add up at each barrier
        self._kept_alive: list[object] = []

    @property
    def layer(self) -> int:
        """That of the next op; -1 in the head."""
        return -1 if self._head else len(self._layers) - 1

    def append(self, op: Op, *keep_alive: object) -> None:
        """Adds an op, and keeps what it points to."""
        self._ops.append(op)
        self._kept_alive += keep_alive

    def append_barrier(self, sums: Tensor | None) -> None:
        """Adds a barrier between ranks; `sums` are what the collectives add up there."""
        self._sums[len(self._ops)] = sums
        self.append(RankBarrierOp())

    def begin_layer(self) -> None:
        """Marks the ops that follow as the next layer."""
        self._layers.append(len(self._ops))

    def op_names(self, *, barriers: bool, adapters: bool) -> list[OpName]:
        """What is at each index; without barriers as in `whole`."""
        return op_names(self._ops, self._layers, self._head, without=_left_out(barriers, adapters))

    def begin_head(self) -> None:
        """Marks the ops that follow as the head, which passes without logits leave out."""
        self._head = len(self._ops)

    def segments(
        self, *, barriers: bool, uncut: bool, head: bool, adapters: bool, first: int = 0
    ) -> list[Segment]:
        """The ops between the barriers, for collectives that are called from Python.

        Args:
            barriers: There are other ranks.
            uncut: The kernels wait at barriers themselves, so there is one segment.
            adapters: Whether rows have adapters; without them the ops of these are left out.
            first: Index of the first op in `spans`.
        """
        if uncut:
            return [Segment(self.whole(barriers=barriers, head=head, adapters=adapters), None, first)]
        segments, ops = list[Segment](), list[Op]()
        for index, op in enumerate(self._ops if head else self._ops[: self._head]):
            if isinstance(op, RankBarrierOp):
                segments.append(Segment(_addresses(ops), self._sums[index], first))
                ops, first = [], first + len(ops) + 1
            elif op.KIND not in _left_out(barriers=True, adapters=adapters):
                ops.append(op)
        return [*segments, Segment(_addresses(ops), None, first)]

    def whole(self, *, barriers: bool, head: bool = True, adapters: bool = False) -> OpList:
        """All ops, as for `segments`; a rank alone needs no barriers."""
        ops, without = self._ops if head else self._ops[: self._head], _left_out(barriers, adapters)
        return _addresses([op for op in ops if op.KIND not in without])


def _left_out(barriers: bool, adapters: bool) -> set[OpKind]:
    kept = {OpKind.RANK_BARRIER: barriers, OpKind.SHRINK: adapters}
    return {kind for kind, keep in kept.items() if not keep}


def _addresses(ops: Sequence[Op]) -> OpList:
    return (ctypes.c_void_p * len(ops))(*map(ctypes.addressof, ops))
