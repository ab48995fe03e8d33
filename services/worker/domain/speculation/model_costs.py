"""What guesses of a draft model cost, and whether the draft model is asked at all.

A guess is priced like one of prompt lookup, plus the time in which it was made. Beside the credit of each
sequence there is one of all together, which reads the texts as well: it pays for all guesses and earns what
they bring. So a draft model whose guesses are bad costs `START` steps and one in a hundred, whatever the
number of sequences.
"""

_SMOOTHING = 0.125  # weight of the newest round
_GUESS = 0.2  # of a plain step, for each guess, before anything was measured
START = 50.0  # plain steps
START_OF_ONE = 2.0  # the credit of each sequence at first
MOST = 200.0  # what saved steps count for at most when the guesses get bad
EARNED = 0.01  # for each token without guesses


class ModelCosts:
    """Running averages of the rounds of a draft model, by their number of sequences.

    Args:
        most: Most sequences of a target's step with a cost of their own.

    Attributes:
        credit: Of all sequences, in plain steps.
    """

    def __init__(self, most: int) -> None:
        self._each = [0.0] * (most + 1)  # seconds of a guess; 0: unknown
        self.credit = START

    @property
    def pays(self) -> bool:
        """Whether the draft model is asked."""
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
        self.book_credit(EARNED)
