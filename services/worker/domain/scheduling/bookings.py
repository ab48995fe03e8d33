"""Books what steps and fetches have brought: ended fetches, parts of prompts, steps of guests. Pure.

In a step of an engine of others, whose sequences generate on their own, a chunk that was to sample and has no
token is booked back: its last token counts as not computed, and is planned again. So the states between steps
are those of any other engine.
"""

from collections.abc import Sequence as Ordered
from typing import NamedTuple

from msgspec.structs import replace

from services.worker.domain.blocks.fetches import BlockFetch
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.constraints.forced_tokens import Advance
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.sequence_queues import SequenceQueues
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.domain.speculation.result_booking import ResultBooking
from services.worker.rank_protocol.plan import BLOCK_SIZE, Sampled, StepResult
from services.worker.rank_protocol.prompt_parts import PromptPart


def book_fetch(queues: SequenceQueues, write_behind: WriteBehind, fetch_id: int, count: int) -> None:
    """Books a fetch that brought its first `count` blocks; its sequence computes the rest."""
    fetch = queues.fetched(fetch_id, count)
    if fetch is None:
        return
    write_behind.found(fetch.names[:count])
    write_behind.forget(fetch.names[count:])
    if fetch.sequence is not None and count < len(fetch.names) and queues.blocks.sliding is not None:
        _compute_anew(queues, fetch)  # the window before the first missing block was not fetched


def give_up_fetch(queues: SequenceQueues, fetch_id: int) -> None:
    """Gives up a fetch that takes too long: its sequence computes everything, in other blocks."""
    fetch = queues.fetches.get(fetch_id)
    if fetch is not None:
        _compute_anew(queues, fetch)


def _compute_anew(queues: SequenceQueues, fetch: BlockFetch) -> None:
    """Lets the sequence that waits for a fetch begin again, without asking the store."""
    if fetch.sequence is not None:
        fetch.sequence.stored = -1
        queues.preempt(fetch.sequence)


def arrived_chunks(parts: list[PlannedChunk], result: StepResult) -> list[PlannedChunk]:
    """Returns what a step has computed of the sequences that are still there, to be charged to their parties.

    Of a chunk without the token that it was to sample, these are all but its last token.
    """
    arrived = {one.seq_id for one in result.sampled}
    found: list[PlannedChunk] = []
    for sequence, seq_id, count, samples, end in parts:
        if sequence.phase is SequencePhase.ENDED:
            continue
        if not samples or seq_id in arrived:
            found.append((sequence, seq_id, count, samples, end))
        elif count > 1:
            found.append((sequence, seq_id, count - 1, 0, end - 1))
    return found


def book_arrived(booking: ResultBooking, parts: list[PlannedChunk], result: StepResult) -> list[Advance]:
    """Books a step; returns an `Advance` for each token, in the order of the chunks.

    Raises:
        ValueError: The result has two tokens of a sequence, or one of a sequence that samples none.
    """
    arrived: dict[int, Sampled] = {one.seq_id: one for one in result.sampled}
    asked = {seq_id for _, seq_id, _, samples, _ in parts if samples}
    if len(arrived) != len(result.sampled) or not arrived.keys() <= asked:
        raise ValueError(
            f"the result of step {result.step_id} has two tokens of a sequence, or one that was not asked for"
        )
    advances: list[Advance] = []
    for sequence, seq_id, count, samples, end in parts:
        one = arrived.get(seq_id)
        is_late = samples > 0 and one is None
        _book_computed(booking, sequence, seq_id, count - 1 if is_late else count)
        if not samples or sequence.phase is SequencePhase.ENDED:
            continue
        if one is not None:
            if one.cached_tokens and sequence.num_output == sequence.entered_with:
                sequence.cached_tokens = one.cached_tokens
            advances += booking.book_sample(sequence, one, end)
            continue
        sequence.pending -= 1
        if sequence.seq_id == seq_id:
            sequence.planned -= 1
    return advances


def _book_computed(booking: ResultBooking, sequence: Sequence, seq_id: int, count: int) -> None:
    """Counts tokens as computed, unless the sequence was preempted or has ended since."""
    if count and sequence.seq_id == seq_id:
        sequence.computed += count
        if sequence.computed % BLOCK_SIZE < count:
            booking.name_blocks(sequence, count)


class PromptAdvance(NamedTuple):
    """A sequence, and what is new of its prompt; with an error the sequence cannot go on."""

    sequence: Sequence
    part: PromptPart


def book_prompts(chunks: Ordered[PlannedChunk], parts: Ordered[PromptPart]) -> list[PromptAdvance]:
    """Returns what is new, in order; a sequence that was preempted brings some scores twice.

    Args:
        parts: What the engine has returned for it.
    """
    if not parts:
        return []
    sequences = {seq_id: sequence for sequence, seq_id, *_ in chunks}
    advances = []
    for part in parts:
        sequence = sequences[part.seq_id]
        if sequence.phase is SequencePhase.ENDED:
            continue
        known = max(0, sequence.scored - part.first) if part.scores else 0
        new = replace(part, first=part.first + known, scores=part.scores[known:]) if known else part
        if new.scores:
            sequence.scored = new.first + len(new.scores)
        advances.append(PromptAdvance(sequence, new))
    return advances
