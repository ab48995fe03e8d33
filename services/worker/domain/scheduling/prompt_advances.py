"""Books what a step has brought of prompts: scores of their tokens, and embeddings. Pure."""

from collections.abc import Sequence as Ordered
from typing import NamedTuple

from msgspec.structs import replace

from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.rank_protocol.prompt_parts import PromptPart


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
