"""The KV blocks of a group: which are free, which belong to which sequences, and what they contain.

Manages numbers; the ranks hold the bytes, the scheduler allocates and frees. A block that is full and
computed has a name (`blocks/names.py`); sequences whose tokens begin alike share it. Where layers with a
sliding window have blocks of their own (`sliding_blocks.py`), a sequence has a table in both pools.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.pool import BlockPool, blocks_for
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.rank_protocol.plan import BLOCK_SIZE


class VacatedBlocks(NamedTuple):
    """Ranges (first, end) of blocks without content, and the same of the layers with a sliding window."""

    blocks: list[tuple[int, int]]
    sliding: list[tuple[int, int]]


_NOTHING = VacatedBlocks([], [])


class BlockManager:
    """Tables of sequences over `num_blocks` blocks.

    Args:
        sliding: Blocks of the layers with a sliding window; None if all layers share the blocks.
        region: See `BlockPool`.

    Attributes:
        limit: How many blocks tables may have when another one is opened. Open ones may grow beyond it.
        bound: How many blocks tables may have at any time; they do not grow beyond it.
    """

    def __init__(self, num_blocks: int, sliding: SlidingBlocks | None = None, region: int = 1) -> None:
        self.num_blocks = self.limit = self.bound = num_blocks
        self.sliding = sliding
        self._pool = BlockPool(num_blocks, region)
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that new tables may have."""
        return max(0, self.limit - self.num_used)

    @property
    def num_used(self) -> int:
        """Blocks in tables."""
        return self.num_blocks - self._pool.num_free

    @property
    def num_held(self) -> int:
        """Blocks that may have content, in tables or cached."""
        return self.num_used + self.num_cached

    def set_limit(self, limit: int, bound: int | None = None) -> None:
        """Sets the limit; blocks beyond it that no table has lose their content, the oldest content first.

        Blocks beyond it that tables have stay as they are. Call it again when some of these are closed.

        Args:
            limit: See the class.
            bound: See the class; None: all blocks.
        """
        self.limit = limit
        self.bound = self.num_blocks if bound is None else bound
        self._pool.withhold(self.num_blocks - limit)
        if self.sliding is not None:
            self.sliding.set_share(limit / self.num_blocks)

    @property
    def has_vacated(self) -> bool:
        """Whether `take_vacated` has something to give."""
        return self._pool.has_vacated or (self.sliding is not None and self.sliding.has_vacated)

    def take_vacated(self) -> VacatedBlocks:
        """Returns what lost its content to the limit since the last call; the ranks give its memory back."""
        if not self.has_vacated:  # as in nearly all steps
            return _NOTHING
        sliding = [] if self.sliding is None else self.sliding.take_vacated()
        return VacatedBlocks(self._pool.take_vacated(), sliding)

    @property
    def num_cached(self) -> int:
        """Free blocks with content that a sequence may still find."""
        return self._pool.num_cached

    def num_exclusive(self, seq_id: int, num_tokens: int = 0, names: Sequence[bytes] = ()) -> int:
        """Returns how many blocks would be free if the sequence gave up its own.

        Blocks are not counted that `allocate` for another sequence, of so many tokens, would share.
        """
        shared = set(self._find(num_tokens, names))
        readers = self._pool.num_readers
        return [readers(block) for block in self._tables[seq_id] if block not in shared].count(1)

    def is_cached(self, name: bytes) -> bool:
        """Returns whether there is a block of that name, in a table or not."""
        return name in self._pool.by_name

    def cached_names(self) -> list[bytes]:
        """Returns the names for which `is_cached` is true."""
        return list(self._pool.by_name)

    @property
    def num_names(self) -> int:
        """How many these are."""
        return len(self._pool.by_name)

    def record_changes(self, changes: BlockChanges | None) -> None:
        """Records in `changes` which names come and go from now on; None ends it."""
        self._pool.changes = changes

    def find(self, name: bytes) -> tuple[int, int] | None:
        """Returns the block of that name and its sliding block, -1 where there is no pool of these.

        None if it is not whole any more: one of the two is gone.
        """
        block = self._pool.by_name.get(name)
        if block is None or self.sliding is None:
            return None if block is None else (block, -1)
        other = self.sliding.find(name)
        return None if other is None else (block, other)

    def num_found(self, names: Sequence[bytes]) -> int:
        """Returns behind how many of these blocks a sequence could begin."""
        by_name, count = self._pool.by_name, len(names)
        for index, name in enumerate(names):
            if name not in by_name:
                count = index
                break
        return count if self.sliding is None else self.sliding.usable(names[:count])

    def estimate_found(self, names: Sequence[bytes]) -> int:
        """Returns about the same as `num_found` in a few look-ups, however many names there are.

        Exact unless there is a gap, which is rare: `release` gives the end of a sequence away first. Sliding
        blocks are not considered.
        """
        by_name = self._pool.by_name
        if not names or names[0] not in by_name:
            return 0
        return bisect_left(names, True, key=lambda name: name not in by_name)

    def cost(self, num_tokens: int, names: Sequence[bytes] = ()) -> int:
        """Returns how many of the free blocks `allocate` would take."""
        shared = self._find(num_tokens, names)
        return blocks_for(num_tokens) - len(shared) + self._num_unused(shared)

    def allocate(
        self, seq_id: int, num_tokens: int, names: Sequence[bytes] = (), spare: int = 0
    ) -> int | None:
        """Opens a table with blocks for a sequence's tokens; blocks that are there already are shared.

        Args:
            num_tokens: How many tokens it has. The last one is always computed, so its block is never shared.
            names: Of its full blocks, from the first on.
            spare: Blocks that must stay free.

        Returns:
            How many of its first tokens have their KV there; None, with nothing changed, if there are not
            enough blocks.
        """
        shared = self._find(num_tokens, names)
        opened = self._open(seq_id, shared, names, blocks_for(num_tokens), spare)
        return len(shared) * BLOCK_SIZE if opened else None

    def hold(self, seq_id: int, names: Sequence[bytes]) -> int | None:
        """Opens a table for blocks of these names, from a sequence's first on, which are to be filled.

        Returns how many of them are there already; None, with nothing changed, when there are not enough.
        """
        # a token more than they hold, so that all of them may be shared
        shared = self._find(len(names) * BLOCK_SIZE + 1, names)
        return len(shared) if self._open(seq_id, shared, names, len(names)) else None

    def hand_over(self, seq_id: int, to: int) -> None:
        """Gives a table another number."""
        if to in self._tables:
            raise ValueError(f"sequence {to} has a block table already")
        self._tables[to] = self._tables.pop(seq_id)
        if self.sliding is not None:
            self.sliding.hand_over(seq_id, to)

    def drop(self, names: Iterable[bytes]) -> int:
        """Removes names, so that no sequence finds their blocks; returns how many blocks there were.

        Blocks in tables stay until these are closed.
        """
        count = 0
        for name in names:
            count += self._pool.drop(name)
            if self.sliding is not None:
                self.sliding.drop(name)
        return count

    def append(self, seq_id: int, num_tokens: int) -> list[int] | None:
        """Grows a table until it holds `num_tokens` tokens.

        Returns the added blocks in order, or None, with nothing changed, when there are not enough.
        """
        table = self._tables[seq_id]
        missing = blocks_for(num_tokens) - len(table)
        if missing <= 0:
            return []
        if missing > min(self._pool.num_free, self.bound - self.num_used):
            return None
        added = self._pool.take(missing)
        table += added
        return added

    def register(self, seq_id: int, first: int, names: Sequence[bytes]) -> None:
        """Names blocks of a table, from block `first` of it on, that are full and computed now.

        A name that another block has stays with that one; what is computed twice is not worth more.
        """
        table = self._tables[seq_id]
        for block, name in zip(table[first : first + len(names)], names, strict=True):
            self._pool.name(block, name)
        if self.sliding is not None:
            self.sliding.register(seq_id, first, names)

    def release(self, seq_id: int) -> None:
        """Closes a table; blocks that are in no other one are free at once. An unknown sequence has none."""
        # the end goes first: without it the beginning of a prefix is still of use, but not the other way
        self._pool.give_back(reversed(self._tables.pop(seq_id, ())))
        if self.sliding is not None:
            self.sliding.release(seq_id)

    def forget(self, seq_id: int) -> None:
        """Removes the names of a sequence's blocks, whose content is not to be trusted."""
        for block in self._tables[seq_id]:
            self._pool.unname(block)
        if self.sliding is not None:
            self.sliding.forget(seq_id)

    def table(self, seq_id: int) -> tuple[int, ...]:
        """Returns the blocks of a sequence, in the order of its positions."""
        return tuple(self._tables[seq_id])

    def check_invariants(self) -> None:
        """Raises `AssertionError` unless the pools and the tables agree."""
        self._pool.check_invariants(self._tables.values())
        if self.sliding is not None:
            self.sliding.check_invariants()

    def _open(
        self, seq_id: int, shared: list[int], names: Sequence[bytes], num_blocks: int, spare: int = 0
    ) -> bool:
        """Opens a table of so many blocks, the first of which are shared; False if they are not free."""
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id} has a block table already")
        if num_blocks - len(shared) + self._num_unused(shared) + spare > self.num_free:
            return False
        if self.sliding is not None and not self.sliding.has_room:
            return False
        for block in shared:
            self._pool.share(block)
        self._tables[seq_id] = shared + self._pool.take(num_blocks - len(shared))
        if self.sliding is not None:
            self.sliding.open(seq_id, names[: len(shared)])
        return True

    def _find(self, num_tokens: int, names: Sequence[bytes]) -> list[int]:
        """The blocks that a sequence of so many tokens can begin behind; never that of the last token."""
        by_name, found = self._pool.by_name, list[int]()
        for name in names[: (num_tokens - 1) // BLOCK_SIZE]:
            block = by_name.get(name)
            if block is None:
                break
            found.append(block)
        return found if self.sliding is None else found[: self.sliding.usable(names[: len(found)])]

    def _num_unused(self, blocks: list[int]) -> int:
        return [self._pool.num_readers(block) for block in blocks].count(0)
