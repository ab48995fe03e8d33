"""Decides whether and how far a sequence is drafted, by what its drafts have saved so far.

A sequence has a credit, counted in plain steps. A step with drafts earns the tokens that it brought beyond
one, and pays what it took longer than a plain step. Plain tokens earn a hundredth. So all drafts of a
sequence together cost at most `START` steps and one in a hundred, however bad the guesses are. A step has
only so many drafts as the credit covers.
"""

START = 0.5  # plain steps
EARNED = 0.01  # for each token without drafts
MOST = 4.0  # what saved steps count for at most when the guesses get bad
FIRST = 4  # drafts in the first step that has some


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
