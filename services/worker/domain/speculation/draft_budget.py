"""Decides whether and how far a sequence is drafted, by what its drafts have saved so far.

A sequence has a credit, counted in plain steps. A step with drafts earns the tokens that it brought beyond
one, and pays what it took longer than a plain step. Plain tokens earn a hundredth. So all drafts of a
sequence together cost at most `START` steps and one in a hundred, however bad the guesses are. A step has
only so many drafts as the credit covers.

`StepCosts`: compares the measured times of steps with and without drafts.
"""

START = 0.5  # plain steps
EARNED = 0.01  # for each token without drafts
MOST = 4.0  # what saved steps count for at most when the guesses get bad
FIRST = 4  # drafts in the first step that has some
_SMOOTHING = 0.125  # weight of the newest step
_GUESS = 0.1  # of a plain step, for each draft, before anything was measured
_LEAST = 0.001  # of a plain step, for each draft: below what can be measured
_LONGEST_WAIT = 1.0  # of the plain time: a longer pause before a step has other reasons


class DraftBudget:
    """The budget of one sequence.

    Args:
        most: Drafts in one step.
        start: Its credit at first, in plain steps; None: `START`.

    Attributes:
        credit: In plain steps.
    """

    __slots__ = ("_length", "_most", "credit")

    def __init__(self, most: int, start: float | None = None) -> None:
        self._most = most
        self._length = min(FIRST, most)
        self.credit = START if start is None else start

    def allowed(self, price: float) -> int:
        """Returns how many drafts the next step may have; 0 if the credit covers none.

        Args:
            price: What a wrong draft costs, in plain steps.
        """
        return min(self._length, int(self.credit / price)) if self.credit > 0 else 0

    def book_plain(self) -> None:
        """Books a token that came without drafts."""
        self.credit = min(MOST, self.credit + EARNED)

    def charge(self, cost: float) -> None:
        """Books plain steps that it took to make drafts."""
        self.credit -= cost

    def book_drafts(self, drafted: int, right: int, gain: float) -> None:
        """Books a step with drafts.

        Args:
            right: How many of them were right.
            gain: Plain steps that it saved; below 0: that it cost.
        """
        self.credit = min(MOST, self.credit + gain)
        self._length = (
            min(self._most, 2 * drafted) if right == drafted else max(1, min(self._most, right + 1))
        )


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
