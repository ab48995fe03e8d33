"""Books the steps of an engine whose sequences generate on their own: a step brings what has arrived. Pure.

A chunk that was to sample and has no token is booked back: its last token counts as not computed, and is
planned again. So the states between steps are those of any other engine.
"""

from services.worker.domain.constraints.forced_tokens import Advance
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.domain.speculation.result_booking import ResultBooking
from services.worker.rank_protocol.plan import BLOCK_SIZE, Sampled, StepResult


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
