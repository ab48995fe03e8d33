"""What guesses of a draft model cost, and whether it may begin with another sequence.

A guess is priced like one of prompt lookup, plus the time in which it was made. Reading the text of a
sequence, before its first guess, is paid by all sequences together: from a credit that guesses earn, too.
"""

_SMOOTHING = 0.125  # weight of the newest round
_GUESS = 0.2  # of a plain step, for each guess, before anything was measured
START = 50.0  # plain steps
MOST = 200.0  # what saved steps count for at most when the guesses get bad
_EARNED = 0.01  # for each token without guesses


class ModelCosts:
    """Running averages of the rounds of a draft model, by their number of sequences.

    Args:
        most: Sequences of the target's step that are told apart.

    Attributes:
        credit: For reading texts, in plain steps.
    """

    def __init__(self, most: int) -> None:
        self._each = [0.0] * (most + 1)  # seconds of a guess; 0: unknown
        self.credit = START

    @property
    def may_read(self) -> bool:
        """Whether it may read the text of another sequence."""
        return self.credit > 0

    def price(self, sequences: int, plain_s: float) -> float:
        """Returns the time in which a guess is expected to be made, in plain steps.

        Args:
            sequences: In the step of the target.
            plain_s: Seconds of such a step without guesses.
        """
        known = self._each[sequences]
        return known / plain_s if known else _GUESS

    def book_round(self, sequences: int, guesses: int, seconds: float) -> None:
        """Books the time in which guesses were made."""
        before, each = self._each[sequences], seconds / guesses
        self._each[sequences] = each if not before else before + _SMOOTHING * (each - before)

    def book_credit(self, gain: float) -> None:
        """Books plain steps that were saved or, below 0, lost."""
        self.credit = min(MOST, self.credit + gain)

    def book_plain(self) -> None:
        """Books a token that came without guesses."""
        self.book_credit(_EARNED)
