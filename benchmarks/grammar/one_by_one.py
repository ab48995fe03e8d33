"""A grammar whose forced tokens are sampled one by one, for comparison with taking them at once."""

from collections.abc import Sequence

from services.worker.domain.generation.token_constraint import TokenConstraint
from services.worker.rank_protocol.step_masks import mask_of


class OneByOne:
    """Gives the same tokens as the grammar does with forced tokens, and forces none.

    Args:
        grammar: At the beginning of an answer.
    """

    def __init__(self, grammar: TokenConstraint) -> None:
        self._grammar = grammar
        self._run = grammar.forced()  # the rest of a run

    def accept(self, token_ids: Sequence[int]) -> None:
        """Moves on by tokens of the choice."""
        for token_id in token_ids:
            self._grammar.accept([token_id])
            del self._run[:1]
            if not self._run:
                self._run = self._grammar.forced()

    def mask(self) -> bytes | None:
        """Returns the tokens that may come next: one token inside a run."""
        return mask_of(self._run[0]) if self._run else self._grammar.mask()

    def forced(self) -> list[int]:
        """Returns no token."""
        return []

    @property
    def ended(self) -> bool:
        """Whether only the end may come."""
        return self._grammar.ended and not self._run
