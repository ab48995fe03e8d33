"""Requests that were computed when an engine died run in steps of their own until they are cleared.

A step that kills the ranks computes many requests, and any of them may be the cause. So they go on elsewhere
alone: steps of one of them alternate with steps of all others, and no step is planned ahead. A request
that gets a few new tokens in this way is cleared, since the fatal step was among those, and runs like any
other. A request that is alone in a second fatal step is the cause.
"""

from services.worker.domain.scheduling.sequence import Sequence, SequencePhase

TRIAL_TOKENS = 4  # beyond those that its caller has; more than a fatal step and one planned ahead compute


class CrashTrials:
    """The sequences of one scheduler that are on trial; almost always there is none.

    Args:
        possible: Whether the engine computes some sequences without the others; else none is on trial.

    Attributes:
        sequences: Read only; every step checks whether there are any.
    """

    def __init__(self, *, possible: bool = True) -> None:
        self._possible = possible
        self.sequences: set[Sequence] = set()
        self._was_served = False  # the last step was one of them; the others are next

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence on trial if it has `trial_tokens`."""
        if sequence.trial_tokens and self._possible:
            self.sequences.add(sequence)

    def is_on(self, sequence: Sequence) -> bool:
        """Returns whether a sequence is on trial."""
        return bool(self.sequences) and sequence in self.sequences

    def others_first(self) -> bool:
        """Returns whether the next step is for the others; drops trials that ended or were cleared."""
        self.sequences = {
            one for one in self.sequences if one.phase is not SequencePhase.ENDED and one.trial_tokens
        }
        others_first, self._was_served = self._was_served or not self.sequences, False
        return others_first

    def choose(self, running: list[Sequence]) -> list[Sequence]:
        """Returns the sequences of the first request on trial that can be computed now."""
        able = [one for one in running if one in self.sequences and not one.fetching]
        chosen = [one for one in able if one.request_id == able[0].request_id]
        self._was_served = bool(chosen)
        return chosen
