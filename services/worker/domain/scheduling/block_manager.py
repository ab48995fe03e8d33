"""The KV blocks of a group: which are free, which belong to which sequences, and what they contain.

Manages numbers; the ranks hold the bytes, the scheduler allocates and frees. A block that is full and
computed has a name (`block_names.py`); sequences whose tokens begin alike share it. A free block keeps its
content and its name until it is the least recently used one and its place is needed.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from services.worker.rank_protocol.plan import BLOCK_SIZE


def blocks_for(num_tokens: int) -> int:
    """Returns how many blocks hold that many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockManager:
    """`num_blocks` blocks, each of them empty, cached (free, with content) or in one or more tables."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a group needs at least one KV block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is used first
        self._cached: OrderedDict[int, None] = OrderedDict()  # the one unused for longest comes first
        self._readers = [0] * num_blocks  # in how many tables a block is
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that are in no table, with or without content."""
        return len(self._empty) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks in tables."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks with content that a sequence may still find."""
        return len(self._cached)

    def num_exclusive(self, seq_id: int, num_tokens: int = 0, names: Sequence[bytes] = ()) -> int:
        """Returns how many blocks would be free if the sequence gave up its own.

        Blocks are not counted that `allocate` for another sequence, of so many tokens, would share.
        """
        shared = set(self._find(num_tokens, names))
        return [self._readers[block] for block in self._tables[seq_id] if block not in shared].count(1)

    def is_cached(self, name: bytes) -> bool:
        """Returns whether there is a block of that name, in a table or not."""
        return name in self._by_name

    def find(self, name: bytes) -> int | None:
        """Returns the block of that name."""
        return self._by_name.get(name)

    def num_found(self, names: Sequence[bytes]) -> int:
        """Returns how many leading names have a block."""
        for count, name in enumerate(names):
            if name not in self._by_name:
                return count
        return len(names)

    def estimate_found(self, names: Sequence[bytes]) -> int:
        """Returns the same as `num_found` in a few look-ups, however many names there are.

        Exact unless there is a gap, which is rare: `release` gives the end of a sequence away first.
        """
        by_name = self._by_name
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
            seq_id: The sequence.
            num_tokens: How many tokens it has. The last one is always computed, so its block is never shared.
            names: Of its full blocks, from the first on.
            spare: Blocks that must stay free.

        Returns:
            How many of its first tokens have their KV there; None, with nothing changed, if there are not
            enough blocks.
        """
        shared = self._find(num_tokens, names)
        found = self._open(seq_id, shared, blocks_for(num_tokens), spare)
        return None if found is None else found * BLOCK_SIZE

    def hold(self, seq_id: int, names: Sequence[bytes]) -> int | None:
        """Opens a table for blocks of these names, from a sequence's first on, which are to be filled.

        Returns how many of them are there already; None, with nothing changed, when there are not enough.
        """
        # a token more than they hold, so that all of them may be shared
        shared = self._find(len(names) * BLOCK_SIZE + 1, names)
        return self._open(seq_id, shared, len(names))

    def hand_over(self, seq_id: int, to: int) -> None:
        """Gives a table another number."""
        if to in self._tables:
            raise ValueError(f"sequence {to} has a block table already")
        self._tables[to] = self._tables.pop(seq_id)

    def drop(self, names: Iterable[bytes]) -> int:
        """Removes names, so that no sequence finds their blocks; returns how many blocks there were.

        Blocks in tables stay until these are closed.
        """
        count = 0
        for name in names:
            block = self._by_name.get(name)
            if block is None:
                continue
            count += 1
            self._unname(block)
            if not self._readers[block]:
                del self._cached[block]
                self._empty.append(block)
        return count

    def append(self, seq_id: int, num_tokens: int) -> list[int] | None:
        """Grows a table until it holds `num_tokens` tokens.

        Returns the added blocks in order, or None, with nothing changed, when there are not enough.
        """
        table = self._tables[seq_id]
        missing = blocks_for(num_tokens) - len(table)
        if missing <= 0:
            return []
        if missing > self.num_free:
            return None
        added = self._take(missing)
        table += added
        return added

    def register(self, seq_id: int, first: int, names: Sequence[bytes]) -> None:
        """Names blocks of a table, from block `first` of it on, that are full and computed now.

        A name that another block has stays with that one; what is computed twice is not worth more.
        """
        table, by_name = self._tables[seq_id], self._by_name
        for block, name in zip(table[first : first + len(names)], names, strict=True):
            if name not in by_name and self._names[block] is None:
                by_name[name] = block
                self._names[block] = name

    def release(self, seq_id: int) -> None:
        """Closes a table; blocks that are in no other one are free at once. An unknown sequence has none."""
        # the end goes first: without it the beginning of a prefix is still of use, but not the other way
        for block in reversed(self._tables.pop(seq_id, ())):
            self._readers[block] -= 1
            if self._readers[block]:
                continue
            if self._names[block] is None:
                self._empty.append(block)
            else:
                self._cached[block] = None

    def forget(self, seq_id: int) -> None:
        """Removes the names of a sequence's blocks, whose content is not to be trusted."""
        for block in self._tables[seq_id]:
            self._unname(block)

    def table(self, seq_id: int) -> tuple[int, ...]:
        """Returns the blocks of a sequence, in the order of its positions."""
        return tuple(self._tables[seq_id])

    def check_invariants(self) -> None:
        """Raises `AssertionError` unless free lists, reference counts, tables and names agree."""
        readers = [0] * self.num_blocks
        for seq_id, table in self._tables.items():
            if len(set(table)) != len(table):
                raise AssertionError(f"sequence {seq_id} has a block twice")
            for block in table:
                readers[block] += 1
        if readers != self._readers:
            raise AssertionError("the reference counts are not those of the tables")
        free = [*self._empty, *self._cached]
        if sorted(free) != [block for block, count in enumerate(readers) if not count]:
            raise AssertionError(f"{len(free)} free blocks are not those that are in no table")
        named = {name: block for block, name in enumerate(self._names) if name is not None}
        if named != self._by_name or len(named) != sum(name is not None for name in self._names):
            raise AssertionError("blocks and names do not agree")
        if any(self._names[b] is None for b in self._cached) or any(self._names[b] for b in self._empty):
            raise AssertionError("a cached block has no name, or an empty one has")

    def _open(self, seq_id: int, shared: list[int], num_blocks: int, spare: int = 0) -> int | None:
        """Opens a table of so many blocks, the first of which are shared; returns how many those are."""
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id} has a block table already")
        found = len(shared)
        if num_blocks - found + self._num_unused(shared) + spare > self.num_free:
            return None
        for block in shared:
            if not self._readers[block]:
                del self._cached[block]
            self._readers[block] += 1
        self._tables[seq_id] = shared
        shared += self._take(num_blocks - found)
        return found

    def _find(self, num_tokens: int, names: Sequence[bytes]) -> list[int]:
        """The blocks that are there, from the first on without a gap; never that of the last token."""
        found: list[int] = []
        for name in names[: (num_tokens - 1) // BLOCK_SIZE]:
            block = self._by_name.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def _num_unused(self, blocks: list[int]) -> int:
        return [self._readers[block] for block in blocks].count(0)

    def _take(self, count: int) -> list[int]:
        """Free blocks, those without content first, then those that were unused for longest."""
        empty = self._empty
        taken = []
        for _ in range(count):
            if empty:
                block = empty.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._unname(block)
            self._readers[block] = 1
            taken.append(block)
        return taken

    def _unname(self, block: int) -> None:
        name = self._names[block]
        if name is not None:
            del self._by_name[name]
            self._names[block] = None
