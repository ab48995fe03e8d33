"""Books what chunks have brought: sampled tokens, right drafts, full blocks, and the ends of sequences.

A chunk with drafts brings those of them that were right, and the token that was sampled after them.
"""

from collections import deque
from dataclasses import dataclass, field

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.constraints.forced_tokens import Advance, advance
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.sequence_queues import SequenceQueues
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.domain.speculation.speculation import Speculation
from services.worker.rank_protocol.plan import BLOCK_SIZE, Sampled, StepResult

_NOTHING = Sampled(seq_id=0, token_id=0)  # no sequence is called 0


@dataclass(slots=True)
class BookedStep:
    """What came of a step.

    Attributes:
        advances: Of its tokens, in the plan's order.
        drafted: For each sequence with drafts its seq_id, the number of drafts, and how many were right.
        num_tokens: Tokens that it computed.
        has_prompt: Whether a part of a prompt was among them.
        has_chunk: Whether that or a run of forced tokens was.
    """

    advances: list[Advance] = field(default_factory=list)
    drafted: list[tuple[int, int, int]] = field(default_factory=list)
    num_tokens: int = 0
    has_prompt: bool = False
    has_chunk: bool = False


def draft_tokens(most: int, blocks: BlockManager, names: BlockNames) -> int:
    """Returns how many drafts a step of a sequence may have with this KV cache.

    None with sliding blocks, which are given up when tokens are computed, and with fp8 in cold blocks, which
    are compressed then: both would have to wait until a draft is known to be right.
    """
    return most if blocks.sliding is None and "+" not in names.kv_format else 0


def _take_group(sampled: deque[Sampled], seq_id: int) -> list[Sampled]:
    """Removes the next results of a sequence and returns them.

    Raises:
        ValueError: There are none.
    """
    group: list[Sampled] = []
    while sampled and sampled[0].seq_id == seq_id:
        group.append(sampled.popleft())
    if not group:
        raise ValueError(f"the result has no token for sequence {seq_id}")
    return group


def _append_group(sequence: Sequence, group: list[Sampled]) -> list[Advance]:
    """Appends tokens to a sequence, up to the one that ends it; returns what came of each."""
    taken: list[Advance] = []
    for one in group:
        if one.error:
            taken.append(Advance(sequence, one, None, len(sequence.tokens)))
            break
        taken += advance(sequence, one)
        if taken[-1].finish_reason is not None:
            break
    return taken


class ResultBooking:
    """Books chunks of sequences.

    Args:
        queues: From which sequences leave that end.
        speculation: Knows which sequences have drafts in flight.
    """

    def __init__(
        self, queues: SequenceQueues, write_behind: WriteBehind, names: BlockNames, speculation: Speculation
    ) -> None:
        self._queues = queues
        self._write_behind = write_behind
        self._names = names
        self._speculation = speculation

    def book_step(self, parts: list[PlannedChunk], result: StepResult) -> BookedStep:
        """Books a step whose sampling chunks all have tokens.

        Raises:
            ValueError: The result lacks a token.
        """
        sampled, speculation, booked = deque(result.sampled), self._speculation, BookedStep()
        advances, num_tokens = booked.advances, 0
        for sequence, seq_id, count, samples, end in parts:
            if samples > 1:
                taken, right = self.book_drafted(sequence, seq_id, sampled)
                advances += taken
                booked.drafted.append((seq_id, samples - 1, right))
                num_tokens += samples
                continue
            num_tokens += count
            if count > 1:
                booked.has_chunk = True
                booked.has_prompt = booked.has_prompt or end <= sequence.run_start
            if sequence.seq_id == seq_id:
                sequence.computed += count
                if sequence.computed % BLOCK_SIZE < count:
                    self.name_blocks(sequence, count)
            if not samples:
                continue
            one = sampled.popleft() if sampled else _NOTHING
            if one.seq_id != seq_id:
                raise ValueError(f"the result of step {result.step_id} has no token for sequence {seq_id}")
            if sequence.phase is SequencePhase.ENDED:
                continue
            taken = self.book_sample(sequence, one, end)
            advances += taken
            if speculation.most:
                speculation.book_plain(seq_id)
            if sequence.trial_tokens:
                sequence.trial_tokens = max(0, sequence.trial_tokens - len(taken))
        booked.num_tokens = num_tokens
        return booked

    def book_sample(self, sequence: Sequence, one: Sampled, end: int) -> list[Advance]:
        """Books what was sampled for index `end` of a sequence; nothing if it was forced meanwhile.

        Raises:
            ValueError: The sequence has another token there.
        """
        if end == len(sequence.tokens):
            sequence.pending -= 1
            if sequence.constraint is None and not one.error:  # nearly always
                reason = sequence.take(one.token_id)
                if reason is not None:
                    self._queues.end(sequence)
                return [Advance(sequence, one, reason, len(sequence.tokens))]
        if one.error:
            self._end_failed(sequence, one)
            return [Advance(sequence, one, None, end)]
        if end < len(sequence.tokens):
            if one.token_id != sequence.tokens[end]:
                raise ValueError(f"sequence {one.seq_id} has another token at {end} than its mask allowed")
            return []
        taken = advance(sequence, one)
        last = taken[-1]
        if last.finish_reason is not None or last.sampled.error:
            self._queues.end(sequence)
        return taken

    def book_drafted(
        self, sequence: Sequence, seq_id: int, sampled: deque[Sampled]
    ) -> tuple[list[Advance], int]:
        """Books a chunk with drafts: its tokens, then the blocks that are full with them.

        Args:
            sequence: Whose chunk it is; it may have ended, or been preempted, since.
            seq_id: Its seq_id when the step was planned.
            sampled: The results that are not booked; those of the chunk are removed.

        Returns:
            What came of each token, and how many drafts were right.
        """
        self._speculation.in_flight.discard(seq_id)
        group = _take_group(sampled, seq_id)
        if sequence.phase is SequencePhase.ENDED:
            return [], len(group) - 1
        sequence.pending -= 1
        taken = _append_group(sequence, group)
        count, last = len(taken), taken[-1]
        if last.sampled.error:
            self._end_failed(sequence, last.sampled)
            return taken, len(group) - 1
        if sequence.seq_id == seq_id:
            sequence.computed += count
            sequence.planned += count - 1
            if sequence.computed % BLOCK_SIZE < count:
                self.name_blocks(sequence, count)
        if last.finish_reason is not None:
            self._queues.end(sequence)
        return taken, len(group) - 1

    def name_blocks(self, sequence: Sequence, count: int) -> None:
        """Names the blocks that are full with the last `count` tokens computed."""
        before, after = (sequence.computed - count) // BLOCK_SIZE, sequence.computed // BLOCK_SIZE
        names = self._names.of(sequence)[before:after]
        self._queues.computed(sequence, before, names)
        if sequence.embedding is None:  # nothing goes on from there
            self._write_behind.add(names)

    def _end_failed(self, sequence: Sequence, one: Sampled) -> None:
        """Removes a sequence without a token; if logits were no numbers, its blocks are not used again."""
        if one.cause != "not_finite":
            self._queues.end(sequence)
            return
        self._write_behind.distrust(self._names.of(sequence))
        self._queues.end(sequence, forget=True)
