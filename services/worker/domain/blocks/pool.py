"""A pool of KV blocks: which are empty, which are cached under a name, and in how many tables each is.

A free block keeps its content and its name until it is the least recently used one and its memory is needed,
here or by the system, for which regions of free blocks are withheld (`withheld_regions.py`).
"""

from collections import OrderedDict
from collections.abc import Iterable

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.withheld_regions import WithheldRegions
from services.worker.rank_protocol.plan import BLOCK_SIZE


def blocks_for(num_tokens: int) -> int:
    """Returns how many blocks hold that many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockPool:
    """`num_blocks` blocks, each of them empty, cached (free, with content), withheld, or in tables.

    Args:
        region: How many neighbouring blocks are withheld together.

    Attributes:
        changes: Records the names that are added and removed; None: they are not recorded.
    """

    def __init__(self, num_blocks: int, region: int = 1) -> None:
        if num_blocks < 1:
            raise ValueError(f"a group needs at least one KV block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is used first
        self._cached: OrderedDict[int, None] = OrderedDict()  # the one unused for longest comes first
        self._readers = [0] * num_blocks  # in how many tables a block is
        self._names: list[bytes | None] = [None] * num_blocks
        self.by_name: dict[bytes, int] = {}
        self.changes: BlockChanges | None = None
        self._withheld = WithheldRegions(num_blocks, region)

    @property
    def num_free(self) -> int:
        """Blocks that are in no table, with or without content; withheld ones as well."""
        return len(self._empty) + len(self._cached) + self._withheld.num_idle

    @property
    def num_cached(self) -> int:
        """Free blocks with content that a sequence may still find."""
        return len(self._cached)

    def num_readers(self, block: int) -> int:
        """Returns in how many tables a block is."""
        return self._readers[block]

    def take(self, count: int) -> list[int]:
        """Returns free blocks: empty ones, then those unused for longest, and at last withheld ones."""
        empty = self._empty
        taken = []
        for _ in range(count):
            while not empty and not self._cached:
                self._restore_region()
            if empty:
                block = empty.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self.unname(block)
            self._readers[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """Counts one more table with a block that has a name."""
        if not self._readers[block]:
            del self._cached[block]
        self._readers[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """Counts one table less with each of these blocks; those in no other one are free at once."""
        for block in blocks:
            self._readers[block] -= 1
            if self._readers[block]:
                continue
            if self._withheld.holds[block]:
                self.unname(block)
                self._withheld.note_idle(block)
            elif self._names[block] is None:
                self._empty.append(block)
            else:
                self._cached[block] = None

    def name(self, block: int, name: bytes) -> None:
        """Names a block in a table; a name that another block has stays with that one."""
        if name not in self.by_name and self._names[block] is None:
            self.by_name[name] = block
            self._names[block] = name
            if self.changes is not None:
                self.changes.note_stored(name)

    def unname(self, block: int) -> None:
        """Removes the name of a block, if it has one, so that no sequence finds it."""
        name = self._names[block]
        if name is not None:
            del self.by_name[name]
            self._names[block] = None
            if self.changes is not None:
                self.changes.note_removed(name)

    def drop(self, name: bytes) -> bool:
        """Removes a name; its block is empty then, unless it is in a table. Returns whether there was one."""
        block = self.by_name.get(name)
        if block is None:
            return False
        self.unname(block)
        if not self._readers[block]:
            del self._cached[block]
            self._empty.append(block)
        return True

    def withhold(self, count: int) -> None:
        """Withholds regions until one more would be over `count` blocks, or ends it for some.

        First those without a block in a table, by the time for which they were unused, empty ones before all.
        """
        regions, readers = self._withheld, self._readers
        if count - regions.num_blocks >= regions.size:
            ages = dict.fromkeys(self._empty, -1)
            ages.update((block, order) for order, block in enumerate(self._cached))
            gone = set[int]()
            for number in regions.in_order(ages):
                if regions.num_blocks + regions.size_of(number) > count:
                    break
                gone.update(regions.add(number, readers))
            self._empty = [block for block in self._empty if block not in gone]
            for block in gone.intersection(self._cached):
                del self._cached[block]
                self.unname(block)
        while regions.num_blocks > count:
            self._restore_region()

    @property
    def has_vacated(self) -> bool:
        """Whether `take_vacated` has something to give."""
        return self._withheld.has_new

    def take_vacated(self) -> list[tuple[int, int]]:
        """Returns the ranges (first, end) of blocks whose content went to `withhold` since the last call."""
        return self._withheld.take_new()

    def _restore_region(self) -> None:
        self._empty += reversed(self._withheld.pop(self._readers))

    def check_invariants(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises `AssertionError` unless free lists, reference counts, names and these tables agree."""
        readers = [0] * self.num_blocks
        for table in tables:
            blocks = list(table)
            if len(set(blocks)) != len(blocks):
                raise AssertionError("a table has a block twice")
            for block in blocks:
                readers[block] += 1
        if readers != self._readers:
            raise AssertionError("the reference counts are not those of the tables")
        holds = self._withheld.holds  # by index: the compiler knows no iteration over a bytearray
        idle = [block for block in range(self.num_blocks) if holds[block] and not readers[block]]
        free = [*self._empty, *self._cached, *idle]
        if sorted(free) != [block for block, count in enumerate(readers) if not count]:
            raise AssertionError(f"{len(free)} free blocks are not those that are in no table")
        named = {name: block for block, name in enumerate(self._names) if name is not None}
        if named != self.by_name or len(named) != sum(name is not None for name in self._names):
            raise AssertionError("blocks and names do not agree")
        if any(self._names[b] is None for b in self._cached) or any(self._names[b] for b in self._empty):
            raise AssertionError("a cached block has no name, or an empty one has")
        if any(self._names[block] for block in idle) or len(idle) != self._withheld.num_idle:
            raise AssertionError("withheld blocks have names, or are counted wrong")
