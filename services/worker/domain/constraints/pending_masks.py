"""The steps in flight that lack masks, and the masks when the tokens before them are known."""

from collections import deque

from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.rank_protocol.step_masks import ANY_TOKEN, NO_TOKEN, StepMasks, mask_of


class PendingMasks:
    """Masks of steps, in the order of the steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, list[tuple[Sequence, int]]]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def expect(self, step_id: int, planned: list[PlannedChunk]) -> None:
        """Notes the chunks of a planned step that are masked."""
        rows = [(sequence, end) for sequence, _, _, samples, end in planned if samples and sequence.is_masked]
        if rows:
            self._steps.append((step_id, rows))

    def take(self) -> list[StepMasks]:
        """Returns the masks of all steps that can be made now; each step's are returned once."""
        made: list[StepMasks] = []
        while self._steps:
            step_id, rows = self._steps[0]
            if not all(_is_known(sequence, end) for sequence, end in rows):
                break
            self._steps.popleft()
            made.append(StepMasks(step_id=step_id, masks=[_mask_at(sequence, end) for sequence, end in rows]))
        return made


def _is_known(sequence: Sequence, end: int) -> bool:
    """Whether the tokens before index `end` are known, or do not matter since the sequence has ended."""
    return len(sequence.tokens) >= end or sequence.phase is SequencePhase.ENDED


def _mask_at(sequence: Sequence, end: int) -> bytes:
    """Returns the mask of the token at index `end`."""
    if sequence.phase is SequencePhase.ENDED or sequence.constraint is None:
        return ANY_TOKEN  # its token is dropped
    if end < len(sequence.tokens):
        return mask_of(sequence.tokens[end])  # it was forced after the step was planned
    if sequence.forced:
        return mask_of(sequence.forced[0])
    try:
        mask = sequence.constraint.mask()
    except Exception as error:  # a bug in one grammar must not end the others
        sequence.grammar_error = error  # the sequence ends without a token
        return NO_TOKEN
    return ANY_TOKEN if mask is None else mask
