"""Which blocks of which sequence lie uncompressed beside the compressed ones, and in which places.

A sequence has places for the blocks that it fills, from `hot_blocks` before the one that its next token is
in. It loses the others with each pass, and all when the rank forgets it. Results do not depend on which place
a block has.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.native.library import BatchPointers
from services.worker.engine.rank.sequences import PlanError, SequenceState
from services.worker.rank_protocol.plan import BLOCK_SIZE

Ints = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _Zone:
    """first: the first block, counted in the sequence, that has a place; the others follow."""

    first: int
    places: list[int] = field(default_factory=list)

    def move(self, first: int) -> list[int]:
        """Lets it begin at block `first` if that is further on; the places of those before."""
        count = min(max(0, first - self.first), len(self.places))
        behind = self.places[:count]
        del self.places[:count]
        self.first += count
        return behind


@dataclass(frozen=True, slots=True)
class ZoneArrays:
    """What a pass is told: slots of its tokens, [tokens]; (first block, begin in `places`) of its spans,
    [spans, 2]; the places of all spans; and (block, place) of the blocks that it fills, [blocks, 2].
    """

    slots: Ints
    spans: Ints
    places: Ints
    full: Ints

    def put(self, batch: BatchPointers) -> None:
        """Enters their addresses."""
        batch.zone_slots, batch.zone = self.slots.ctypes.data, self.spans.ctypes.data
        batch.places, batch.full = self.places.ctypes.data, self.full.ctypes.data
        batch.fulls = len(self.full)


class Zones:
    """The places of all sequences of a rank.

    A sequence's zone ends with its state, which the rank drops when it is released.
    """

    def __init__(self, num_places: int, hot_blocks: int) -> None:
        self._free = list(range(num_places - 1, -1, -1))  # what was used last is used first: it has memory
        self._num_places = num_places
        self._hot_blocks = hot_blocks
        self._zones: weakref.WeakKeyDictionary[SequenceState, _Zone] = weakref.WeakKeyDictionary()

    @property
    def num_used(self) -> int:
        """Places that have a block."""
        return self._num_places - len(self._free)

    def enter(self, spans: Sequence[tuple[SequenceState, int, int]]) -> ZoneArrays:
        """Takes and gives back places for a pass over those tokens: state, first position, count.

        Raises:
            PlanError: a sequence begins in the middle of a block that it did not fill.
        """
        slots = np.empty(sum(count for _, _, count in spans), np.int32)
        rows: list[tuple[int, int]] = []
        places: list[int] = []
        full: list[tuple[int, int]] = []
        behind: list[int] = []  # for the next pass
        begin = 0
        for state, start, count in spans:
            zone, end = self._take(state, start, count), start + count
            rows.append((zone.first, len(places)))
            places += zone.places
            for index in range(start // BLOCK_SIZE, (end - 1) // BLOCK_SIZE + 1):
                place, at = zone.places[index - zone.first], index * BLOCK_SIZE
                first, last = max(start, at), min(end, at + BLOCK_SIZE)
                slot = place * BLOCK_SIZE + first - at
                slots[begin + first - start : begin + last - start] = range(slot, slot + last - first)
                if last == at + BLOCK_SIZE:
                    full.append((int(state.table.view[index]), place))
            begin += count
            behind += zone.move(end // BLOCK_SIZE - self._hot_blocks)
        self._free += behind
        return ZoneArrays(
            slots=slots,
            spans=np.array(rows, np.int32),
            places=np.array(places, np.int32),
            full=np.array(full, np.int32).reshape(-1, 2),
        )

    def _take(self, state: SequenceState, start: int, count: int) -> _Zone:
        zone = self._zones.get(state)
        first, last = start // BLOCK_SIZE, (start + count - 1) // BLOCK_SIZE
        if zone is None:
            zone = self._zones[state] = _Zone(first)
            weakref.finalize(state, self._free_all, zone).atexit = False
        if not zone.first <= first <= zone.first + len(zone.places):
            self._free_all(zone)  # it goes on where others filled its blocks, or begins anew
            zone.first = first
        if start % BLOCK_SIZE and first == zone.first + len(zone.places):
            raise PlanError(
                f"sequence {state.seq_id} begins at token {start}, in a block that it did not fill; with "
                f"kv_cold=fp8 it has to begin with a block"
            )
        missing = last + 1 - zone.first - len(zone.places)
        if missing > len(self._free):
            raise PlanError(f"sequence {state.seq_id}: more blocks are being filled than the cache has")
        for _ in range(missing):
            zone.places.append(self._free.pop())
        return zone

    def _free_all(self, zone: _Zone) -> None:
        self._free += zone.places
        zone.places.clear()
