"""The KV cache of the null engine: token ids in place of keys and values, and the readers of each block.

So a block that is shared too early, written by two sequences or read after its release is found at once.
"""

from collections.abc import Sequence

from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, ScheduledChunk
from services.worker.rank_protocol.step_masks import ANY_TOKEN


class NullSequence:
    """A sequence: its tokens, how many are computed, and its blocks.

    Attributes:
        adapter: Fingerprint of its adapter; empty for the base.
        early_ends: Tokens that end it, if they may not come at first.
        new: Its announcement, if it asks of its prompt; else None.
        masked: Whether a grammar limits its tokens; that may also append some.
        shift: By how many tokens its adapter shifts the answer.
        plain: Whether nothing is asked of it but tokens, any of which may come.
    """

    __slots__ = (
        "adapter",
        "blocks",
        "computed",
        "early_ends",
        "logprobs",
        "masked",
        "min_length",
        "new",
        "plain",
        "seq_id",
        "shift",
        "slot",
        "tokens",
    )

    def __init__(self, new: NewSequence, adapter: str, shift: int) -> None:
        sampling = new.sampling
        self.adapter, self.shift, self.slot = adapter, shift, new.adapter
        self.new = new if new.embedding is not None or new.scored >= 0 else None
        self.seq_id = new.seq_id
        self.tokens = new.token_ids.copy()
        self.logprobs = sampling.logprobs
        self.computed = 0
        self.masked = False
        self.blocks: list[int] = []
        self.min_length = new.prompt_len + sampling.min_tokens
        ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else new.eos_ids)}
        self.early_ends = ends if sampling.min_tokens else set[int]()
        self.plain = self.new is None and self.logprobs < 0 and not self.early_ends

    def choose(self, token_id: int, mask: bytes, vocab_size: int) -> int:
        """Return the token, or one that may come in its place; -1 if there is none.

        Args:
            mask: See `StepMasks`.
            vocab_size: Token ids are below it.
        """
        allowed: Sequence[int] = range(vocab_size)
        if mask != ANY_TOKEN:
            allowed = [i for i in range(min(8 * len(mask), vocab_size)) if mask[i // 8] >> i % 8 & 1]
        if len(self.tokens) < self.min_length:
            allowed = [i for i in allowed if i not in self.early_ends] or allowed
        if not allowed or token_id in allowed:
            return token_id if allowed else -1
        return allowed[len(self.tokens) % len(allowed)]


class NullBlocks:
    """Contents and reference counts of `num_blocks` blocks.

    Attributes:
        content: The tokens in each block.
        adapters: With which adapter they were computed; a block that is not here, with the base.
    """

    def __init__(self, num_blocks: int) -> None:
        self.content: list[list[int]] = [[] for _ in range(num_blocks)]
        self.adapters: dict[int, str] = {}
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
            if not 0 <= block < len(self.content) or block in table:
                raise EngineFailed(f"block {block} for sequence {sequence.seq_id} is taken or does not exist")
            if begin < start:
                wanted = sequence.tokens[begin : begin + BLOCK_SIZE]
                if self.content[block] != wanted:
                    raise EngineFailed(
                        f"block {block} does not hold tokens {begin} to {begin + BLOCK_SIZE} "
                        f"of sequence {sequence.seq_id}"
                    )
                if self.adapters.get(block, "") != sequence.adapter:
                    raise EngineFailed(f"block {block} of sequence {sequence.seq_id} is another adapter's")
                readers[block] = readers.get(block, 0) + 1
            else:
                if block in readers:
                    raise EngineFailed(
                        f"block {block} for sequence {sequence.seq_id} is taken or does not exist"
                    )
                readers[block] = 1
                self.content[block] = []
                self._note_adapter(block, sequence.adapter)
            table.append(block)

    def _note_adapter(self, block: int, adapter: str) -> None:
        if adapter:
            self.adapters[block] = adapter
        elif self.adapters:
            self.adapters.pop(block, None)

    def write_next(self, sequence: NullSequence, piece: ScheduledChunk) -> bool:
        """Compute the newest token of a sequence, if the chunk is just that and its block is there.

        Returns:
            Whether it was; else nothing has changed.
        """
        start, table, tokens = piece.start, sequence.blocks, sequence.tokens
        if (
            start != sequence.computed
            or start + 1 != len(tokens)
            or piece.token_ids != tokens[start:]
            or not piece.sample
            or piece.new_blocks
            or piece.masked
            or piece.drafts
            or piece.follow
            or start >= len(table) * BLOCK_SIZE
        ):
            return False
        self.content[table[start // BLOCK_SIZE]].append(tokens[start])
        sequence.computed, sequence.masked = start + 1, False
        return True

    def write_tokens(self, sequence: NullSequence, count: int) -> None:
        """Compute the next `count` tokens of a sequence into its blocks."""
        start, table = sequence.computed, sequence.blocks
        end = start + count
        if count == 1 and start < len(table) * BLOCK_SIZE:  # the common case
            self.content[table[start // BLOCK_SIZE]].append(sequence.tokens[start])
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
            self.content[block] += tokens[start:stop]  # never of a shared block: those are full
            start = stop
        sequence.computed = end

    def forget_tokens(self, sequence: NullSequence, end: int) -> None:
        """Forget what was computed of a sequence from position `end` on."""
        for index in range(end // BLOCK_SIZE, (sequence.computed - 1) // BLOCK_SIZE + 1):
            del self.content[sequence.blocks[index]][max(0, end - index * BLOCK_SIZE) :]
        sequence.computed = end

    def vacate(self, first: int, end: int) -> None:
        """Clear blocks `first` to `end`, which no sequence has.

        Raises:
            EngineFailed: A sequence has one of them, or they do not exist.
        """
        if not 0 <= first < end <= len(self.content) or any(first <= block < end for block in self._readers):
            raise EngineFailed(f"blocks {first} to {end} are in use or do not exist, and cannot be vacated")
        self.content[first:end] = [[] for _ in range(first, end)]

    def release_blocks(self, sequence: NullSequence) -> None:
        """Release the blocks of a sequence; they keep their content."""
        readers = self._readers
        for block in sequence.blocks:
            readers[block] -= 1
            if not readers[block]:
                del readers[block]
