"""Requests that were computed when an engine died: they run in steps of their own until they are cleared.

A step that kills the ranks computes many requests at once, and says nothing of which of them did it. So those
that were in it go on elsewhere alone: by turns a step of one of them and a step of all others, and nothing is
planned ahead. One that brings a few new tokens so is cleared, since the fatal step was among those, and runs
like any other from then on. One that is alone in a second fatal step is the cause.
"""

from services.worker.domain.scheduling.sequence import Sequence, SequencePhase

TRIAL_TOKENS = 4  # beyond those that its caller has: what the fatal step, and one planned ahead, computed


class CrashTrials:
    """The sequences of one scheduler that are on trial; almost always there is none.

    sequences: to be read only; every step looks whether there are any.
    """

    def __init__(self) -> None:
        self.sequences: set[Sequence] = set()
        self._had_turn = False  # the last step was one of them; the others are next

    def add(self, sequence: Sequence) -> None:
        """Takes note of a sequence that comes to the scheduler."""
        if sequence.trial_tokens:
            self.sequences.add(sequence)

    def is_on(self, sequence: Sequence) -> bool:
        """Whether that sequence is on trial."""
        return bool(self.sequences) and sequence in self.sequences

    def others_first(self) -> bool:
        """Whether the next step is that of the others; forgets those on trial that ended or were cleared."""
        self.sequences = {
            one for one in self.sequences if one.phase is not SequencePhase.ENDED and one.trial_tokens
        }
        others_first, self._had_turn = self._had_turn or not self.sequences, False
        return others_first

    def choose(self, running: list[Sequence]) -> list[Sequence]:
        """The sequences of the first request in order that is on trial and can be computed now."""
        able = [one for one in running if one in self.sequences and not one.fetching]
        chosen = [one for one in able if one.request_id == able[0].request_id]
        self._had_turn = bool(chosen)
        return chosen
