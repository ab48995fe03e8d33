"""The blocks of layers with a sliding window: a sequence keeps those that its next token still sees.

They are a pool of their own beside that of the other layers. A block has the same name in both, and the same
position in a sequence; but here a sequence has no blocks behind the window, nor for tokens that no step
computes yet. What falls behind stays cached until its memory is needed. So a sequence can begin behind a
prefix only where the whole window before that position is still here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.worker.domain.blocks.pool import BlockPool, blocks_for
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.sliding_pool import reserved_blocks


@dataclass(slots=True)
class _Table:
    """The blocks of one sequence, from its block `first` on."""

    first: int
    blocks: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)


class SlidingBlocks:
    """Every table reserves its share of the pool, so that `extend` never lacks a block.

    Args:
        window: How many last positions a token sees in these layers, itself included.
        chunk_blocks: Blocks that the chunks of all steps in flight fill together, at most.
        region: See `BlockPool`.
    """

    def __init__(self, num_blocks: int, window: int, chunk_blocks: int, region: int = 1) -> None:
        self._pool = BlockPool(num_blocks, region)
        self._window = window
        self._tables: dict[int, _Table] = {}
        self._most_tables = (num_blocks - chunk_blocks) // reserved_blocks(window)
        if self._most_tables < 1:
            raise ValueError(f"{num_blocks} sliding blocks are too few for a window of {window} tokens")

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self._pool.num_blocks

    @property
    def num_used(self) -> int:
        """Blocks in tables."""
        return self._pool.num_blocks - self._pool.num_free

    def set_share(self, share: float) -> None:
        """Keeps that share of the blocks, and those in tables; the others lose their content."""
        self._pool.withhold(int((1 - share) * self._pool.num_blocks))

    @property
    def has_vacated(self) -> bool:
        """Whether `take_vacated` has something to give."""
        return self._pool.has_vacated

    def take_vacated(self) -> list[tuple[int, int]]:
        """Returns the ranges (first, end) of blocks that lost their content since the last call."""
        return self._pool.take_vacated()

    @property
    def has_room(self) -> bool:
        """Whether one more table can be opened."""
        return len(self._tables) < self._most_tables

    def find(self, name: bytes) -> int | None:
        """Returns the block of that name."""
        return self._pool.by_name.get(name)

    def usable(self, names: Sequence[bytes]) -> int:
        """Returns behind how many of these blocks a sequence can begin: the window before it is here."""
        by_name, run = self._pool.by_name, 0
        found = len(names)
        for index in range(found - 1, -1, -1):
            if names[index] in by_name:
                run += 1
            else:
                found, run = index, 0
            if found - run <= self.first_seen(found):
                return found
        return 0

    def first_seen(self, num_blocks: int) -> int:
        """Returns the first block that the token after so many full blocks sees."""
        return self._first_of(num_blocks * BLOCK_SIZE)

    def open(self, seq_id: int, names: Sequence[bytes]) -> None:
        """Opens a table behind these blocks, as `usable` gives them, and shares the window before it."""
        first = self.first_seen(len(names))
        table = _Table(first, [self._pool.by_name[name] for name in names[first:]])
        for block in table.blocks:
            self._pool.share(block)
        self._tables[seq_id] = table

    def skip_to(self, seq_id: int, num_blocks: int) -> list[int]:
        """Moves a table that no step has used to the position behind so many blocks.

        Returns:
            The blocks that are new in it, which are to be filled; they are the last ones before that
            position.
        """
        table, first = self._tables[seq_id], self.first_seen(num_blocks)
        end = table.end
        self._drop_before(table, first)
        if not table.blocks:
            table.first = first
        self._append(table, num_blocks)
        return table.blocks[max(0, end - table.first) :]

    def extend(self, seq_id: int, known: int, num_tokens: int) -> tuple[int, list[int]]:
        """Grows a table until it holds the sequence's first `num_tokens` tokens.

        Returns:
            Its blocks from block `known` of the sequence on, and the index of the first of these.
        """
        table = self._tables[seq_id]
        self._append(table, blocks_for(num_tokens))
        first = max(known, table.first)
        return first, table.blocks[first - table.first :]

    def slide(self, seq_id: int, num_tokens: int) -> None:
        """Frees the blocks that no token sees after the first `num_tokens` of the sequence."""
        self._drop_before(self._tables[seq_id], self._first_of(num_tokens))

    def register(self, seq_id: int, first: int, names: Sequence[bytes]) -> None:
        """Names blocks of a sequence, from its block `first` on, that are full and computed now."""
        table = self._tables[seq_id]
        for index, name in enumerate(names, start=first):
            if index >= table.first:
                self._pool.name(table.blocks[index - table.first], name)

    def release(self, seq_id: int) -> None:
        """Closes a table. An unknown sequence has none."""
        table = self._tables.pop(seq_id, None)
        if table is not None:
            self._pool.give_back(table.blocks)

    def hand_over(self, seq_id: int, to: int) -> None:
        """Gives a table another number."""
        self._tables[to] = self._tables.pop(seq_id)

    def forget(self, seq_id: int) -> None:
        """Removes the names of a sequence's blocks, whose content is not to be trusted."""
        for block in self._tables[seq_id].blocks:
            self._pool.unname(block)

    def drop(self, name: bytes) -> None:
        """Removes a name, so that no sequence finds its block."""
        self._pool.drop(name)

    def check_invariants(self) -> None:
        """Raises `AssertionError` unless pool and tables agree, and every table keeps within its share."""
        self._pool.check_invariants(table.blocks for table in self._tables.values())
        if len(self._tables) > self._most_tables:
            raise AssertionError(f"{len(self._tables)} tables share the sliding blocks")

    def _append(self, table: _Table, end: int) -> None:
        missing = end - table.end
        if missing > self._pool.num_free:
            raise RuntimeError(f"{missing} sliding blocks are missing, though every table has its share")
        table.blocks += self._pool.take(max(0, missing))

    def _drop_before(self, table: _Table, first: int) -> None:
        count = min(max(0, first - table.first), len(table.blocks))
        self._pool.give_back(table.blocks[:count])
        del table.blocks[:count]
        table.first += count

    def _first_of(self, position: int) -> int:
        return max(0, position + 1 - self._window) // BLOCK_SIZE
