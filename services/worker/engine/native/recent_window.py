"""Assigns window slots: which blocks lie in full precision beside the compressed ones, and where.

A sequence has window slots for the blocks that it fills, from `hot_blocks` before the one that its next token
is in. Each pass frees those that fall behind, and the end of the sequence frees all. Results do not depend on
which slot a block has.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.rank.sequences import PlanError, SequenceState
from services.worker.rank_protocol.plan import BLOCK_SIZE

Ints = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _SequenceWindow:
    """The slots of one sequence.

    Attributes:
        first: The first block with a slot, counted in the sequence.
        slots: Of this block and those that follow.
    """

    first: int
    slots: list[int] = field(default_factory=list)

    def advance_to(self, first: int) -> list[int]:
        """Moves the window's begin to block `first` if that is further on; returns the slots before it."""
        count = min(max(0, first - self.first), len(self.slots))
        behind = self.slots[:count]
        del self.slots[:count]
        self.first += count
        return behind


@dataclass(frozen=True, slots=True)
class WindowArrays:
    """The window slots of one pass.

    Attributes:
        slot_mapping: Of its tokens, window slot * 16 + offset, [tokens].
        spans: (first block, begin in `tables`) of its spans, [spans, 2].
        tables: The window slots of all spans.
        full_blocks: (block, sliding block or 0, window slot) of the blocks that it fills, [blocks, 3].
    """

    slot_mapping: Ints
    spans: Ints
    tables: Ints
    full_blocks: Ints

    def fill_in(self, batch: ForwardBatch) -> None:
        """Writes the addresses of the arrays into the batch."""
        batch.window_slot_mapping, batch.window_spans = self.slot_mapping.ctypes.data, self.spans.ctypes.data
        batch.window_tables, batch.full_blocks = self.tables.ctypes.data, self.full_blocks.ctypes.data
        batch.num_full_blocks = len(self.full_blocks)


class RecentWindow:
    """The window slots of all sequences of a rank.

    A sequence's slots are freed with its state, which the rank drops when the sequence is released.
    """

    def __init__(self, num_slots: int, hot_blocks: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))  # the slot used last is used first: it has memory
        self._num_slots = num_slots
        self._hot_blocks = hot_blocks
        self._windows: weakref.WeakKeyDictionary[SequenceState, _SequenceWindow] = weakref.WeakKeyDictionary()

    @property
    def num_used(self) -> int:
        """Slots that have a block."""
        return self._num_slots - len(self._free)

    def assign_slots(self, spans: Sequence[tuple[SequenceState, int, int]]) -> WindowArrays:
        """Assigns and frees slots for a pass over these tokens.

        Args:
            spans: State, first position, and number of tokens of each sequence.

        Raises:
            PlanError: A sequence begins in the middle of a block that it did not fill.
        """
        slot_mapping = np.empty(sum(count for _, _, count in spans), np.int32)
        rows: list[tuple[int, int]] = []
        tables: list[int] = []
        full_blocks: list[tuple[int, int, int]] = []
        behind: list[int] = []  # free from the next pass on
        begin = 0
        for state, start, count in spans:
            window, end = self._extend_window(state, start, count), start + count
            rows.append((window.first, len(tables)))
            tables += window.slots
            for index in range(start // BLOCK_SIZE, (end - 1) // BLOCK_SIZE + 1):
                slot, at = window.slots[index - window.first], index * BLOCK_SIZE
                first, last = max(start, at), min(end, at + BLOCK_SIZE)
                mapped = slot * BLOCK_SIZE + first - at
                slot_mapping[begin + first - start : begin + last - start] = range(
                    mapped, mapped + last - first
                )
                if last == at + BLOCK_SIZE:
                    sliding = int(state.sliding.view[index]) if state.sliding.size else 0
                    full_blocks.append((int(state.table.view[index]), sliding, slot))
            begin += count
            behind += window.advance_to(end // BLOCK_SIZE - self._hot_blocks)
        self._free += behind
        return WindowArrays(
            slot_mapping=slot_mapping,
            spans=np.array(rows, np.int32),
            tables=np.array(tables, np.int32),
            full_blocks=np.array(full_blocks, np.int32).reshape(-1, 3),
        )

    def _extend_window(self, state: SequenceState, start: int, count: int) -> _SequenceWindow:
        window = self._windows.get(state)
        first, last = start // BLOCK_SIZE, (start + count - 1) // BLOCK_SIZE
        if window is None:
            window = self._windows[state] = _SequenceWindow(first)
            weakref.finalize(state, self._free_all, window).atexit = False
        if not window.first <= first <= window.first + len(window.slots):
            # the sequence continues behind blocks that were fetched or shared, or begins anew
            self._free_all(window)
            window.first = first
        if start % BLOCK_SIZE and first == window.first + len(window.slots):
            raise PlanError(
                f"sequence {state.seq_id} begins at token {start}, in a block that it did not fill; with "
                f"kv_cold=fp8 it has to begin with a block"
            )
        missing = last + 1 - window.first - len(window.slots)
        if missing > len(self._free):
            raise PlanError(f"sequence {state.seq_id}: more blocks are being filled than the cache has")
        for _ in range(missing):
            window.slots.append(self._free.pop())
        return window

    def _free_all(self, window: _SequenceWindow) -> None:
        self._free += window.slots
        window.slots.clear()
