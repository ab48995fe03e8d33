"""Between two steps: which adapters come and go, and what that means for waiting and running sequences."""

from typing import NamedTuple

from services.worker.domain.adapters.choice import AdapterChoice
from services.worker.domain.adapters.pool import SlotOrder
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SequenceQueues

MIN_TOKENS = 8  # that a sequence gets between two preemptions, whatever it has to compute again


class RefusedSequence(NamedTuple):
    """A sequence whose adapter cannot be loaded, and why; the caller ends it."""

    sequence: Sequence
    reason: str


class AdapterAdmission:
    """Carries out the decisions about adapters.

    Args:
        preempts: Whether sequences are preempted for others' adapters: what they have computed is found
            again when they go on.

    Attributes:
        refused: Sequences that the caller is to end.
    """

    def __init__(self, queues: SequenceQueues, *, preempts: bool) -> None:
        self.refused: list[RefusedSequence] = []
        self._queues = queues
        self._adapters = queues.adapters
        self._choice = AdapterChoice(queues.adapters.pool)
        self._preempts = preempts

    @property
    def has_orders(self) -> bool:
        """Whether the ranks, or the caller, have something to do."""
        return bool(self._adapters.pool.orders or self.refused)

    def prepare_step(self, now: float) -> None:
        """Decides what comes and goes; called before a step is planned.

        So what leaves a slot is in no later step, and what comes has no sequence before it is loaded.
        """
        if not self._adapters.waiting:
            return
        if self._decide(now):
            self._decide(now)  # the preempted ones have left their slots

    def take_orders(self) -> list[SlotOrder]:
        """Returns what the ranks are to do with slots, once the step that was planned last has begun."""
        return self._adapters.pool.take_orders()

    def end_load(self, fingerprint: str, error: str, now: float, seconds: float) -> None:
        """Books the end of a load; sequences that wait for it may be admitted, or are refused.

        Args:
            error: Why it is not loaded; empty: it is.
            now: Monotonic seconds.
            seconds: The time of the load itself.
        """
        self._adapters.pool.end_load(fingerprint, error, now, seconds)
        if not error:
            self._queues.admit_adapter(fingerprint)

    def take_refused(self) -> list[RefusedSequence]:
        """Returns sequences whose adapter cannot be loaded."""
        refused, self.refused = self.refused, []
        return refused

    def _decide(self, now: float) -> bool:
        """Decides once; returns whether sequences were preempted."""
        queues, adapters = self._queues, self._adapters
        changes = self._choice.decide(adapters.wants(), adapters.highest_waiting(), now)
        self.refused = []
        for name in changes.closed:
            queues.hold_adapter(name)
        for name in changes.opened:
            queues.admit_adapter(name)
        for name, reason in changes.refused:
            self.refused += [RefusedSequence(one, reason) for one in adapters.waiting[name]]
        victims = [one for name in changes.preempt for one in self._victims(name)]
        for victim in victims:
            queues.preempt(victim)
        return bool(victims)

    def _victims(self, fingerprint: str) -> list[Sequence]:
        """Returns the sequences of an adapter that may be preempted: they have got on, and lose little."""
        return [
            one
            for one in self._queues.running
            if self._preempts
            and one.adapter is not None
            and one.adapter.fingerprint == fingerprint
            and not (one.fetching or one.computes_all or one.trial_tokens)
            and one.num_output - one.entered_with >= MIN_TOKENS
        ]
