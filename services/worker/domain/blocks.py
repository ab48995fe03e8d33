"""The KV blocks of a group: which are free, and which belong to which sequence.

Decides only the numbers; the ranks hold the bytes, the scheduler says who gets blocks and who gives
them back. Every sequence has its own blocks: `allocate` reports how many tokens of a prompt are there
already, which is none as long as blocks are not shared.
"""

from services.worker.domain.plan import BLOCK_SIZE


def blocks_for(num_tokens: int) -> int:
    """How many blocks hold that many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockManager:
    """A free list and one table of block numbers per sequence, over `num_blocks` blocks."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a group needs at least one KV block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is used first
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks in tables."""
        return self.num_blocks - len(self._free)

    def allocate(self, seq_id: int, token_ids: list[int]) -> int:
        """Opens a table for a sequence; returns how many of its first tokens have their KV there already."""
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id} has a block table already")
        self._tables[seq_id] = []
        return 0

    def append(self, seq_id: int, num_tokens: int) -> list[int] | None:
        """Grows a table until it holds `num_tokens` tokens.

        Returns the added blocks in order, or None, with nothing changed, when there are not enough.
        """
        table = self._tables[seq_id]
        missing = blocks_for(num_tokens) - len(table)
        if missing <= 0:
            return []
        if missing > len(self._free):
            return None
        if missing == 1:
            added = [self._free.pop()]
        else:
            added = self._free[: -missing - 1 : -1]
            del self._free[-missing:]
        table += added
        return added

    def release(self, seq_id: int) -> list[int]:
        """Closes a table; its blocks are free at once. Returns them; an unknown sequence has none."""
        freed = self._tables.pop(seq_id, [])
        self._free += freed
        return freed

    def table(self, seq_id: int) -> tuple[int, ...]:
        """The blocks of a sequence, in the order of its positions."""
        return tuple(self._tables[seq_id])

    def check_invariants(self) -> None:
        """Raises `AssertionError` unless every block is either free or in exactly one table."""
        used = [block for table in self._tables.values() for block in table]
        everything = sorted(used + self._free)
        if everything != list(range(self.num_blocks)):
            raise AssertionError(
                f"{len(used)} used and {len(self._free)} free blocks are not {self.num_blocks} different ones"
            )
