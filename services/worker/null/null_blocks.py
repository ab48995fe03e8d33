"""The KV cache of the null engine: token ids in place of keys and values, and the readers of each block.

So a block that is shared too early, written by two sequences or read after its release is found at once.
"""

from dataclasses import dataclass, field

from services.worker.rank_protocol.plan import BLOCK_SIZE, EngineFailed, NewSequence


@dataclass(slots=True)
class NullSequence:
    """A sequence: its tokens, how many are computed, and its blocks; `new` if it asks of its prompt."""

    seq_id: int
    tokens: list[int]
    logprobs: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    new: NewSequence | None = None


class NullBlocks:
    """Contents and reference counts of `num_blocks` blocks."""

    def __init__(self, num_blocks: int) -> None:
        self._content: list[list[int]] = [[] for _ in range(num_blocks)]
        self._readers: dict[int, int] = {}  # block to the number of tables that hold it

    @property
    def num_held(self) -> int:
        """Number of blocks in tables."""
        return len(self._readers)

    def append_blocks(self, sequence: NullSequence, blocks: list[int], start: int) -> None:
        """Append blocks to a sequence's table; those before `start` must hold the sequence's tokens.

        A sequence without computed tokens counts as computed up to `start` then.

        Raises:
            EngineFailed: A block is taken, does not exist or holds other tokens.
        """
        readers, table = self._readers, sequence.blocks
        if not table and start:
            if start % BLOCK_SIZE or start >= len(sequence.tokens):
                raise EngineFailed(
                    f"sequence {sequence.seq_id} cannot begin at {start}: no whole blocks before"
                )
            sequence.computed = start
        for block in blocks:
            begin = len(table) * BLOCK_SIZE
            if not 0 <= block < len(self._content) or block in table:
                raise EngineFailed(f"block {block} for sequence {sequence.seq_id} is taken or does not exist")
            if begin < start:
                wanted = sequence.tokens[begin : begin + BLOCK_SIZE]
                if self._content[block] != wanted:
                    raise EngineFailed(
                        f"block {block} does not hold tokens {begin} to {begin + BLOCK_SIZE} "
                        f"of sequence {sequence.seq_id}"
                    )
                readers[block] = readers.get(block, 0) + 1
            else:
                if block in readers:
                    raise EngineFailed(
                        f"block {block} for sequence {sequence.seq_id} is taken or does not exist"
                    )
                readers[block] = 1
                self._content[block] = []
            table.append(block)

    def write_tokens(self, sequence: NullSequence, count: int) -> None:
        """Compute the next `count` tokens of a sequence into its blocks."""
        start, table = sequence.computed, sequence.blocks
        end = start + count
        if count == 1 and start < len(table) * BLOCK_SIZE:  # the common case
            self._content[table[start // BLOCK_SIZE]].append(sequence.tokens[start])
            sequence.computed = end
            return
        if end > len(table) * BLOCK_SIZE:
            raise EngineFailed(
                f"sequence {sequence.seq_id} has blocks for {len(table) * BLOCK_SIZE} tokens only"
            )
        tokens = sequence.tokens
        while start < end:
            block = table[start // BLOCK_SIZE]
            stop = min(end, start - start % BLOCK_SIZE + BLOCK_SIZE)
            self._content[block] += tokens[start:stop]  # never of a shared block: those are full
            start = stop
        sequence.computed = end

    def release_blocks(self, sequence: NullSequence) -> None:
        """Release the blocks of a sequence; they keep their content."""
        readers = self._readers
        for block in sequence.blocks:
            readers[block] -= 1
            if not readers[block]:
                del readers[block]
