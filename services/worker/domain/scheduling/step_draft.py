"""A plan in the making: chunks of sequences are added one after another."""

from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, ScheduledChunk

# a chunk in flight: the sequence, its seq_id then, how many of its tokens it computes, how many new ones it
# samples at most (with drafts one more than these), and the index after its last token, that of the first new
PlannedChunk = tuple[Sequence, int, int, int, int]


class StepDraft:
    """The chunks of one step.

    Args:
        sliding: Blocks of the layers with a sliding window; None if they have no pool of their own.

    Attributes:
        planned: The same chunks, for when their result is booked.
        admit: Sequences that the ranks do not know yet.
        masked: Whether a grammar limits the tokens of a chunk.
    """

    __slots__ = ("_sliding", "admit", "chunks", "masked", "planned")

    def __init__(self, sliding: SlidingBlocks | None = None) -> None:
        self._sliding = sliding
        self.chunks: list[ScheduledChunk] = []
        self.planned: list[PlannedChunk] = []
        self.admit: list[NewSequence] = []
        self.masked = False

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Adds the next `count` tokens of a sequence that has blocks for them."""
        if not sequence.announced:
            self.admit.append(sequence.announce())
        start, end, known = sequence.planned, sequence.planned + count, len(sequence.tokens)
        samples = end == known + sequence.pending
        masked = samples and sequence.is_masked
        self.masked = self.masked or masked
        sliding_first, sliding_blocks = 0, list[int]()
        if end > sequence.sliding_capacity and self._sliding is not None:
            sent = sequence.sliding_capacity // BLOCK_SIZE
            sliding_first, sliding_blocks = self._sliding.extend(sequence.seq_id, sent, end)
            sequence.sliding_capacity = BLOCK_SIZE * (sliding_first + len(sliding_blocks))
        self.chunks.append(
            ScheduledChunk(
                seq_id=sequence.seq_id,
                start=start,
                token_ids=sequence.tokens[start:end],
                new_blocks=sequence.new_blocks,
                sliding_blocks=sliding_blocks,
                sliding_first=sliding_first,
                sample=samples,
                follow=start >= known,
                masked=masked,
            )
        )
        self.planned.append((sequence, sequence.seq_id, count, int(samples), end))
        sequence.planned, sequence.new_blocks = end, []
        sequence.pending += samples

    def add_drafted(self, sequence: Sequence, drafts: list[int]) -> None:
        """Adds the newest token of a sequence that decodes, and drafts of those after it.

        It counts as one token that brings one; more of both are booked when it is known how many are right.
        """
        start = sequence.planned
        self.chunks.append(
            ScheduledChunk(
                seq_id=sequence.seq_id,
                start=start,
                token_ids=[*sequence.tokens[start:], *drafts],
                new_blocks=sequence.new_blocks,
                sample=True,
                drafts=len(drafts),
            )
        )
        self.planned.append((sequence, sequence.seq_id, 1, 1 + len(drafts), start + 1))
        sequence.planned, sequence.pending, sequence.new_blocks = start + 1, 1, []
