"""The state of one choice in a compiled grammar."""

from collections.abc import Callable, Sequence

from llguidance import LLMatcher

from services.worker.domain.generation.token_constraint import ConstraintFailed, TokenRefused


class MatcherConstraint:
    """See `TokenConstraint`. llguidance ends a forced text after some 16 KiB; it goes on in a further one.

    Args:
        matcher: Its own copy of the grammar's matcher.
        ends: The end-of-sequence tokens.
        end_mask: A mask that has only these.
        on_failure: Called when llguidance gives up, which all copies of the matcher may do then.
    """

    __slots__ = ("_end_mask", "_ends", "_is_over", "_matcher", "_on_failure")

    def __init__(
        self, matcher: LLMatcher, ends: frozenset[int], end_mask: bytes, on_failure: Callable[[], None]
    ) -> None:
        self._on_failure = on_failure
        self._matcher = matcher
        self._ends = ends
        self._end_mask = end_mask
        self._is_over = False  # an end-of-sequence token was accepted

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        tokens = list(token_ids)
        if tokens and tokens[-1] in self._ends:
            del tokens[-1]
            self._is_over = True
        if tokens and not self._matcher.consume_tokens(tokens):
            self._on_failure()
            raise TokenRefused(f"the grammar refuses a token: {_first_line(self._matcher.get_error())}")
        if self._is_over and not self._matcher.is_accepting():
            raise TokenRefused("the grammar does not end here")

    def mask(self) -> bytes:
        """See `TokenConstraint`."""
        if self._is_over:
            return self._end_mask
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask[: len(self._end_mask)]

    def forced(self) -> list[int]:
        """See `TokenConstraint`."""
        if self._is_over or self._matcher.is_stopped():
            return []
        tokens = self._matcher.compute_ff_tokens()
        self._check()
        return tokens

    @property
    def ended(self) -> bool:
        """See `TokenConstraint`."""
        return self._is_over or (self._matcher.is_stopped() and not self._matcher.is_error())

    def _check(self) -> None:
        if self._matcher.is_error():  # its mask would allow the end
            self._on_failure()
            raise ConstraintFailed(
                f"the grammar cannot be followed further: {_first_line(self._matcher.get_error())}"
            )


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
