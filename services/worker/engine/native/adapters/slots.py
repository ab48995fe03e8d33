"""The adapters that a rank's kernels can compute with, by slot, and which rows of a pass use which."""

import ctypes
from collections.abc import Sequence
from ctypes import c_uint64

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.native.adapters.packed_adapter import PackedAdapter
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.passes import PassChunk
from services.worker.engine.native.structs.adapters import AdapterTable
from services.worker.engine.rank.sequences import PlanError, SequenceState
from services.worker.rank_protocol.adapters import NO_ADAPTER


class AdapterSlots:
    """Slots for adapters; changes only between passes.

    Args:
        max_rows: Of a pass.

    Attributes:
        table: The same for the ops, at one address for as long as this object lives.
    """

    def __init__(self, max_rows: int) -> None:
        self.table = AdapterTable()
        self._max_rows = max_rows
        self._packed: list[PackedAdapter | None] = []
        self._addresses = (c_uint64 * 0)()
        self._inner = buffer(max_rows, 0)

    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        """Puts an adapter into a slot, or empties it."""
        if slot >= len(self._packed):
            self._packed += [None] * (slot + 1 - len(self._packed))
        self._packed[slot] = packed
        if len(self._addresses) < len(self._packed):
            self._addresses = (c_uint64 * (2 * len(self._packed)))(*self._addresses)
        self._addresses[slot] = 0 if packed is None else ctypes.addressof(packed.sites)
        if packed is not None and packed.rank > self._inner.shape[1]:
            self._inner = buffer(self._max_rows, padded(packed.rank))
        self.table.slots = ctypes.addressof(self._addresses)
        self.table.inner, self.table.stride = self._inner.data_ptr(), self._inner.shape[1]

    def require(self, states: Sequence[SequenceState]) -> bool:
        """Whether any of the sequences has an adapter.

        Raises:
            PlanError: The slot of one is empty.
        """
        some = False
        for state in states:
            if state.adapter != NO_ADAPTER:
                some = True
                if not 0 <= state.adapter < len(self._packed) or self._packed[state.adapter] is None:
                    raise PlanError(f"sequence {state.seq_id}: there is no adapter in slot {state.adapter}")
        return some


def row_slots(chunks: Sequence[PassChunk]) -> NDArray[np.int32] | None:
    """The slot of each row of a pass; None: no row has an adapter."""
    slots = [state.adapter for state, *_ in chunks]
    if max(slots) == NO_ADAPTER:
        return None
    return np.repeat(np.array(slots, np.int32), [count for _, _, count, _ in chunks])
