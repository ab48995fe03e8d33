"""The state of one choice in a compiled grammar."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from llguidance import LLMatcher

from services.worker.domain.generation.token_constraint import ConstraintFailed, TokenRefused
from services.worker.text.grammars.matcher_source import MatcherSource
from services.worker.text.library_panics import guarded

_FULL = "lexer error"  # how llguidance's texts begin when the lexer that all answers share is full
_RENEW_TOKENS = 64  # that an answer grows by at least before its matcher is replaced once more
_REPLAY_TOKENS = 500  # between two masks while an answer is replayed
_Asked = TypeVar("_Asked")


class MatcherConstraint:
    """See `TokenConstraint`. llguidance ends a forced text after some 16 KiB; it goes on in a further one.

    If the lexer that it shares with other answers is full, it goes on with another one, which it gives all
    tokens so far.

    Args:
        source: Of the grammar's matchers.
        ends: The end-of-sequence tokens.
        end_mask: A mask that has only these.
    """

    __slots__ = ("_end_mask", "_ends", "_is_over", "_lexer", "_matcher", "_renew_from", "_source", "_tokens")

    def __init__(self, source: MatcherSource, ends: frozenset[int], end_mask: bytes) -> None:
        self._source = source
        self._matcher, self._lexer = source.new_matcher()
        self._ends = ends
        self._end_mask = end_mask
        self._is_over = False  # an end-of-sequence token was accepted
        self._tokens: list[int] = []  # accepted so far, without the end
        self._renew_from = 0

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        tokens = list(token_ids)
        if tokens and tokens[-1] in self._ends:
            del tokens[-1]
            self._is_over = True
        if tokens and not guarded(self._matcher.consume_tokens, tokens) and not self._renew(tokens):
            raise TokenRefused(f"the grammar refuses a token: {_first_line(self._matcher.get_error())}")
        self._tokens += tokens
        self._source.count_tokens(len(tokens))
        if self._is_over and not self._matcher.is_accepting():
            raise TokenRefused("the grammar does not end here")

    def mask(self) -> bytes:
        """See `TokenConstraint`."""
        if self._is_over:
            return self._end_mask
        return self._ask(LLMatcher.compute_bitmask)[: len(self._end_mask)]

    def forced(self) -> list[int]:
        """See `TokenConstraint`."""
        if self._is_over or self._matcher.is_stopped():
            return []
        return self._ask(LLMatcher.compute_ff_tokens)

    @property
    def ended(self) -> bool:
        """See `TokenConstraint`."""
        return self._is_over or (self._matcher.is_stopped() and not self._matcher.is_error())

    def _ask(self, question: Callable[[LLMatcher], _Asked]) -> _Asked:
        """Returns what the matcher answers, or its successor if its lexer is full.

        Raises:
            ConstraintFailed: It has none; its mask would allow the end.
        """
        answer = guarded(question, self._matcher)
        if self._matcher.is_error() and self._renew([]):
            answer = guarded(question, self._matcher)
        if self._matcher.is_error():
            why = _first_line(self._matcher.get_error())
            raise ConstraintFailed(f"the grammar cannot be followed further: {why}")
        return answer

    def _renew(self, tokens: list[int]) -> bool:
        """Goes on with another lexer if this one is full.

        Args:
            tokens: Accepted after those so far.

        Returns:
            Whether the new matcher is where the old one should be.
        """
        if not self._matcher.get_error().startswith(_FULL) or len(self._tokens) < self._renew_from:
            return False
        self._matcher, self._lexer = self._source.renew(self._lexer)
        self._renew_from = len(self._tokens) + _RENEW_TOKENS
        return guarded(_replay, self._matcher, [*self._tokens, *tokens])


def _replay(matcher: LLMatcher, tokens: list[int]) -> bool:
    """Feeds the tokens of an answer to a matcher at its beginning; returns whether it took them.

    llguidance bounds the work between two masks: 16,000 characters of a string with `maxLength` are too much.
    """
    for first in range(0, len(tokens), _REPLAY_TOKENS):
        if first:
            matcher.compute_bitmask()
        if not matcher.consume_tokens(tokens[first : first + _REPLAY_TOKENS]):
            return False
    return True


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
