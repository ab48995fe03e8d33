"""Where the tokens of a pass go in a pool of KV blocks, and the blocks that they see."""

import numpy as np
from numpy.typing import NDArray

from services.worker.rank_protocol.plan import BLOCK_SIZE

Ints = NDArray[np.int32]


class BlockIndex:
    """The index arrays of one pass; spans are added in the order of its rows.

    Attributes:
        slots: Of each row, block * 16 + offset, [rows].
    """

    def __init__(self, rows: int) -> None:
        self.slots: Ints = np.empty(rows, np.int32)
        self._tables: list[NDArray[np.int64]] = []

    def add(self, blocks: NDArray[np.int64], row: int, start: int, count: int) -> None:
        """Adds a span: rows from `row` on are `count` tokens of a sequence from position `start` on.

        Args:
            blocks: Of the sequence, up to that of the last token.
            row: The first row.
            start: Position of the first token.
        """
        self._tables.append(blocks)
        if count == 1:
            self.slots[row] = blocks[-1] * BLOCK_SIZE + start % BLOCK_SIZE
        else:
            at = np.arange(start, start + count)
            self.slots[row : row + count] = blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE

    def table(self) -> Ints:
        """The blocks of all spans, one after another."""
        return np.concatenate(self._tables).astype(np.int32) if self._tables else np.empty(0, np.int32)
