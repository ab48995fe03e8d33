"""Fetches: blocks on their way from the store into a group's cache, and the sequences that wait for them.

A fetch owns its blocks until the ranks say that it is done, also when no sequence waits any more: then its
table goes on under the fetch's own number. Fetched blocks are an ordinary part of the prefix cache.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.sequence import Sequence


@dataclass(slots=True, eq=False)
class BlockFetch:
    """One fetch: `names[i]` comes into `blocks[i]`, block `first + i` of the table `table`.

    Attributes:
        fetch_id: Its number, above 0.
        table: Number of the block table.
        first: Index of its first block in the table.
        sliding: Where they go in layers with a sliding window (`FetchBlocks.sliding_blocks`).
        sequence: Waits for it; None if none does.
        after_step: See `FetchBlocks`.
    """

    fetch_id: int
    table: int
    first: int
    names: list[bytes]
    blocks: list[int]
    sliding: list[int]
    sequence: Sequence | None
    after_step: int = 0


class BlockFetches:
    """All fetches in flight, which bring `num_blocks`; new ones are handed out once, by `take`."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._in_flight: dict[int, BlockFetch] = {}
        self._new: list[BlockFetch] = []
        self._last_id = 0
        self.num_blocks = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin(self, sequence: Sequence, first: int, names: Items[bytes]) -> None:
        """Begins a fetch for a running sequence, into its table from block `first` on."""
        sequence.fetching = self._open(sequence.seq_id, first, names, sequence)

    def begin_alone(self, names: Items[bytes]) -> int:
        """Begins a fetch of leading blocks for which no sequence waits.

        Returns:
            The fetch's number; 0 if all blocks are there, or no blocks are free for them.
        """
        holder = -(self._last_id + 1)
        first = self._blocks.hold(holder, names)
        if first is None:
            return 0
        if first == len(names):
            self._blocks.release(holder)
            return 0
        return self._open(holder, first, names[first:], None)

    def get(self, fetch_id: int) -> BlockFetch | None:
        """Returns the fetch of that number, while it is in flight."""
        return self._in_flight.get(fetch_id)

    @property
    def has_new(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._new)

    def take(self, after_step: int) -> list[BlockFetch]:
        """Returns the new fetches; ranks wait with them until they have begun that step."""
        new, self._new = self._new, []
        for fetch in new:
            fetch.after_step = after_step
        return new

    def abandon(self, sequence: Sequence) -> None:
        """Detaches a sequence; its blocks stay with the fetch until that is done."""
        fetch = self._in_flight[sequence.fetching]
        fetch.sequence, fetch.table = None, -fetch.fetch_id
        self._blocks.hand_over(sequence.seq_id, fetch.table)
        sequence.fetching = 0

    def end(self, fetch_id: int, count: int) -> BlockFetch | None:
        """Ends a fetch whose first `count` blocks have their content; all sequences may find these.

        Returns:
            The fetch; None if it is not known.
        """
        fetch = self._in_flight.pop(fetch_id, None)
        if fetch is None:
            return None
        self.num_blocks -= len(fetch.names)
        self._blocks.register(fetch.table, fetch.first, fetch.names[:count])
        if fetch.sequence is None:
            self._blocks.release(fetch.table)
        else:
            fetch.sequence.fetching = 0
        return fetch

    def check_invariants(self) -> None:
        """Raises `AssertionError` when the count of blocks is not that of the fetches."""
        brought = sum(len(fetch.names) for fetch in self._in_flight.values())
        if self.num_blocks != brought:
            raise AssertionError(f"fetches say that they bring {self.num_blocks} blocks, it is {brought}")

    def _open(self, table: int, first: int, names: Items[bytes], sequence: Sequence | None) -> int:
        self._last_id += 1
        blocks, sliding = list(self._blocks.table(table)[first : first + len(names)]), list[int]()
        if self._blocks.sliding is not None:
            new = self._blocks.sliding.skip_to(table, first + len(names))
            sliding = [-1] * (len(names) - len(new)) + new
        fetch = BlockFetch(self._last_id, table, first, list(names), blocks, sliding, sequence)
        self._in_flight[self._last_id] = fetch
        self.num_blocks += len(fetch.names)
        self._new.append(fetch)
        return self._last_id
