"""Regions of neighbouring blocks that a pool withholds: they get no new content, and the system their memory.

Whole regions, since a block is seldom a whole number of memory pages. Blocks of a region that are in tables
stay there; the region's memory goes when the last of them is free.
"""

from collections.abc import Mapping, Sequence


class WithheldRegions:
    """Which regions are withheld.

    Args:
        num_blocks: Of the pool.
        size: Blocks of a region; the last one may have fewer.

    Attributes:
        size: As given.
        num_blocks: Blocks of all withheld regions.
        num_idle: Those of them that are in no table.
        holds: For each block of the pool whether it is withheld.
    """

    def __init__(self, num_blocks: int, size: int) -> None:
        self.num_blocks = self.num_idle = 0
        self.holds = bytearray(num_blocks)
        self.size = size
        self._regions = [range(first, min(first + size, num_blocks)) for first in range(0, num_blocks, size)]
        self._used: dict[int, int] = {}  # withheld regions, in order of withholding: blocks in tables
        self._new: set[int] = set()  # regions that became idle since `take_new`

    @property
    def has_new(self) -> bool:
        """Whether `take_new` has something to give."""
        return bool(self._new)

    def in_order(self, ages: Mapping[int, int]) -> list[int]:
        """Returns the regions that are not withheld: first those with the fewest blocks in tables.

        Of equal ones the oldest first, and of these the last one.

        Args:
            ages: When the blocks in no table were used, the oldest lowest.
        """
        found = list[tuple[int, int, int]]()
        for number, region in enumerate(self._regions):
            if number not in self._used:
                known = [ages[block] for block in region if block in ages]
                found.append((len(region) - len(known), max(known, default=0), -number))
        return [-number for _, _, number in sorted(found)]

    def size_of(self, number: int) -> int:
        """Returns how many blocks a region has."""
        return len(self._regions[number])

    def add(self, number: int, readers: Sequence[int]) -> list[int]:
        """Withholds a region; returns those of its blocks that are in no table.

        Args:
            readers: In how many tables each block of the pool is.
        """
        region = self._regions[number]
        idle = [block for block in region if not readers[block]]
        self.holds[region.start : region.stop] = b"\1" * len(region)
        self.num_blocks += len(region)
        self.num_idle += len(idle)
        self._used[number] = len(region) - len(idle)
        if len(idle) == len(region):
            self._new.add(number)
        return idle

    def note_idle(self, block: int) -> None:
        """Notes that a withheld block left its last table."""
        number = block // self.size
        self.num_idle += 1
        self._used[number] -= 1
        if not self._used[number]:
            self._new.add(number)

    def pop(self, readers: Sequence[int]) -> list[int]:
        """Ends the withholding of the region that was withheld last; returns its blocks in no table."""
        number, _ = self._used.popitem()
        region = self._regions[number]
        idle = [block for block in region if not readers[block]]
        self.holds[region.start : region.stop] = bytes(len(region))
        self.num_blocks -= len(region)
        self.num_idle -= len(idle)
        self._new.discard(number)
        return idle

    def take_new(self) -> list[tuple[int, int]]:
        """Returns the runs (first, end) of idle regions in which there are new ones.

        With their neighbours that were idle before, since regions share memory pages.
        """
        runs, fresh = list[range](), False
        for number in sorted(number for number, used in self._used.items() if not used) if self._new else ():
            region = self._regions[number]
            if runs and runs[-1].stop == region.start:
                runs[-1] = range(runs[-1].start, region.stop)
            else:
                if runs and not fresh:
                    runs.pop()
                runs.append(region)
                fresh = False
            fresh = fresh or number in self._new
        if runs and not fresh:
            runs.pop()
        self._new.clear()
        return [(run.start, run.stop) for run in runs]
