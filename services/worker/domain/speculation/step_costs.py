"""Compares the measured times of steps with and without drafts."""

_SMOOTHING = 0.125  # weight of the newest step
_GUESS = 0.1  # of a plain step, for each draft, before anything was measured
_LEAST = 0.001  # of a plain step, for each draft: below what can be measured
_LONGEST_WAIT = 1.0  # of the plain time: a longer pause before a step has other reasons


class StepCosts:
    """Running averages of steps that only decode, by their number of sequences.

    Args:
        most: Most sequences of a step with a cost of their own.
    """

    def __init__(self, most: int) -> None:
        self._plain = [0.0] * (most + 1)
        self._extra = [0.0] * (most + 1)  # time of a draft, in plain steps; 0: unknown

    def book_plain(self, sequences: int, seconds: float) -> None:
        """Books a step without drafts."""
        if sequences < len(self._plain):
            before = self._plain[sequences]
            self._plain[sequences] = seconds if not before else before + _SMOOTHING * (seconds - before)

    def book_drafts(self, sequences: int, drafts: int, seconds: float, wait_s: float) -> float:
        """Books a step with drafts, which was not submitted ahead; returns its extra time in plain steps.

        Args:
            wait_s: That ranks waited for it.
        """
        if sequences >= len(self._plain):
            return _GUESS * drafts
        plain = self._plain[sequences]
        if not plain:
            return _GUESS * drafts
        extra = max(0.0, (seconds + min(wait_s, _LONGEST_WAIT * plain)) / plain - 1)
        before, each = self._extra[sequences], max(_LEAST, extra / drafts)
        self._extra[sequences] = each if not before else before + _SMOOTHING * (each - before)
        return extra

    def plain_s(self, sequences: int) -> float:
        """Returns the seconds of a step without drafts; 0: unknown."""
        return self._plain[sequences] if sequences < len(self._plain) else 0.0

    def price(self, sequences: int) -> float:
        """Returns the time that a draft is expected to take, in plain steps."""
        known = self._extra[sequences] if sequences < len(self._extra) else 0.0
        return known or _GUESS
