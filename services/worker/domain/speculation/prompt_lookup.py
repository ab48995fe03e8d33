"""Guesses the next tokens of a sequence by its own text: what followed the last time that these tokens came.

The method is prompt lookup decoding (A. Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding). An
index holds where each run of `NGRAM` tokens ended last; a token adds one entry.
"""

from collections import OrderedDict
from collections.abc import Sequence

NGRAM = 3
MAX_ENTRIES = 32_768  # of one sequence; then the oldest are dropped
MAX_NEW = 2048  # tokens that one call adds to the index, so that a long prompt does not hold up the steps


class PromptLookup:
    """The index of one sequence, whose tokens are only appended to."""

    __slots__ = ("_ends", "_indexed")

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[int, ...], int] = (
            OrderedDict()
        )  # a run of tokens, to the index after it
        self._indexed = NGRAM - 1  # runs that end before this index are in it

    @property
    def num_entries(self) -> int:
        """Runs in the index."""
        return len(self._ends)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Returns up to `count` tokens that may follow; none if the newest tokens came only once.

        Args:
            tokens: All tokens of the sequence; the same as in the call before, and new ones.
            count: Tokens wanted.
        """
        known = len(tokens)
        self._add_until(tokens, min(known, self._indexed + MAX_NEW))
        if count < 1 or known < NGRAM:
            return []
        at = self._ends.get(tuple(tokens[known - NGRAM :]))
        if at is None:
            return []
        drafts = list(tokens[at : at + count])
        period = known - at  # a text that repeats itself goes on so
        while len(drafts) < count:
            drafts.append(drafts[len(drafts) - period])
        return drafts

    def _add_until(self, tokens: Sequence[int], end: int) -> None:
        """Adds the runs that end before index `end`; the newest run of all has no token after it yet."""
        ends = self._ends
        for at in range(self._indexed, end):
            run = tuple(tokens[at - NGRAM : at])
            if ends.pop(run, None) is None and len(ends) >= MAX_ENTRIES and run:
                ends.popitem(last=False)
            if len(run) == NGRAM:
                ends[run] = at
        self._indexed = max(self._indexed, end)
