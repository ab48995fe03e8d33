"""A grammar that is ready: it makes the constraints of choices."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from llguidance import LLMatcher

from services.worker.domain.generation.token_constraint import ConstraintFailed, TokenRefused
from services.worker.text.grammars.limits import MOST_ITEMS
from services.worker.text.grammars.matcher_source import MatcherSource
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.library_panics import guarded

_FULL = "lexer error"  # how llguidance's texts begin when the lexer that all answers share is full
# in llguidance's texts when a limit of its parser or lexer is met, which may be while it takes a token
_LIMIT = re.compile(r"max is|too many|too complex|limit|lexer error", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"items; max is", re.IGNORECASE)  # rows of the parser are full
_RENEW_TOKENS = 64  # that an answer grows by at least before its matcher is replaced once more
_REPLAY_TOKENS = 500  # between two masks while an answer is replayed
_Asked = TypeVar("_Asked")


class MatcherConstraint:
    """See `TokenConstraint`. llguidance ends a forced text after some 16 KiB; it goes on in a further one.

    If the lexer that it shares with other answers is full, it goes on with another one, which it gives all
    tokens so far.

    Args:
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
            why = _first_line(self._matcher.get_error())
            if _LIMIT.search(why):
                raise ConstraintFailed(_too_complex(why))
            raise TokenRefused(f"the grammar refuses a token: {why}")
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
            raise ConstraintFailed(_too_complex(why))
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


def _too_complex(why: str) -> str:
    """What a caller can do about a grammar that meets a limit of llguidance; its own text is left out."""
    if _AMBIGUOUS.search(why):
        return "the grammar is too ambiguous to be followed here: let fewer alternatives begin alike"
    return "the grammar is too complex to be followed here: make it smaller"


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]


class GrammarRefused(Exception):
    """llguidance refuses a grammar; the text is its own."""


_TRIAL_TOKENS = 4  # that are followed at once, to see that it can be


class CompiledGrammar:
    """A compiled grammar. Thread-safe; a call returns the constraint of one choice.

    Args:
        text: The grammar in llguidance's own form, as `LLMatcher.grammar_from_lark` returns it.
        items: That a row of the parser may have, `parser_limits`.

    Attributes:
        text: As given; so is `items`.

    Raises:
        GrammarRefused: It is wrong, too large, or no text satisfies it.
    """

    def __init__(self, vocabulary: TokenVocabulary, text: str, items: int = MOST_ITEMS) -> None:
        self.text, self.items = text, items
        self._vocabulary, self._source = vocabulary, MatcherSource(vocabulary, text, items)
        if self._source.error:
            raise GrammarRefused(self._source.error)
        trial = self._source.new_matcher().matcher
        for _ in range(_TRIAL_TOKENS):
            mask = trial.compute_bitmask()
            if trial.is_error() or not any(mask):
                why = trial.get_error()
                raise GrammarRefused("no text satisfies it" if not why or "NoExtension" in why else why)
            if trial.is_stopped():
                break
            trial.consume_token(_first_token(mask, vocabulary))
            trial.compute_ff_tokens()

    def __call__(self) -> MatcherConstraint:
        """Returns a constraint at the beginning of an answer."""
        return MatcherConstraint(self._source, self._vocabulary.ends, self._vocabulary.end_mask)


def _first_token(mask: bytes, vocabulary: TokenVocabulary) -> int:
    """Returns a token of a mask, one that does not end the answer if there is one."""
    allowed = [8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
    return next((token_id for token_id in allowed if token_id not in vocabulary.ends), allowed[0])
