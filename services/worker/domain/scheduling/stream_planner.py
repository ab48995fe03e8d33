"""Plans the steps of an engine whose sequences generate on their own, such as one of others. Pure.

Such an engine batches and shares its time by itself, and a step brings what has arrived. So each step has all
running sequences, their prompts whole, and no limit by measured times: what is decided here is who runs.
Sequences are not put on trial: they cannot be computed in steps of their own.
"""

from services.worker.domain.scheduling.admission import SequenceAdmission
from services.worker.domain.scheduling.fairness.fair_shares import FairShares
from services.worker.domain.scheduling.preemption import Preemption
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.step_draft import StepDraft

_ANY_PROMPTS = 2**31  # tokens that a step has for prompts


class StreamPlanner:
    """Drafts steps.

    Args:
        running: The running sequences, in order.
        preemption: Takes blocks from sequences when they run short.
        fair: The credits of parties.
    """

    def __init__(
        self, running: list[Sequence], admission: SequenceAdmission, preemption: Preemption, fair: FairShares
    ) -> None:
        self._running = running
        self._admission = admission
        self._preemption = preemption
        self._fair = fair

    def draft_step(self) -> StepDraft:
        """Returns the chunks of the next step: one of each running sequence, with all that it lacks."""
        draft = StepDraft()
        admission, running = self._admission, self._running
        if self._fair.has_several:
            admission.find_light()
        if admission.waiting:
            self._preemption.make_room()
        for sequence in running.copy():
            if sequence.phase is SequencePhase.RUNNING:  # else it was preempted for one before it
                self._plan(draft, sequence)
        admitted: list[Sequence] = []
        admission.admit(admitted, _ANY_PROMPTS)
        for sequence in admitted:
            self._plan(draft, sequence)
        return draft

    def _plan(self, draft: StepDraft, sequence: Sequence) -> None:
        count = sequence.remaining
        if sequence.planned + count <= sequence.capacity or self._preemption.grow(sequence, count):
            draft.add_chunk(sequence, count)
