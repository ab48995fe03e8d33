"""A constraint that holds from the end of a model's reasoning on; the reasoning is free.

The answer begins in reasoning if the prompt ends with the mark that opens it, or the model writes it first.
The text behind the closing mark, white space aside, is under the constraint.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    ConstraintFailed,
    TokenConstraint,
    TokenRefused,
)
from services.worker.text.grammars.token_vocabulary import TokenVocabulary

_GAP_TEXTS = (b"\n\n", b"\n")  # that models write behind their reasoning
_GAP_TOKENS = 2


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """The marks of reasoning as tokens.

    Attributes:
        opens: Tokens of the opening mark.
        closes: The closing mark as UTF-8 bytes; an answer's reader finds it also where other tokens spell it.
        close_id: The token that is the closing mark as well; -1: none is.
    """

    opens: tuple[int, ...]
    closes: bytes
    close_id: int = -1


@dataclass(frozen=True, slots=True)
class ReasonedGrammar:
    """A grammar for answers that may have reasoning before. A call makes the constraint of one choice.

    Attributes:
        binding: The answer must have what the grammar says, so it cannot end in its reasoning.
    """

    inner: ConstraintFactory
    vocabulary: TokenVocabulary
    marks: ReasoningTokens
    binding: bool

    def __call__(self) -> "AfterReasoning":
        """Returns a constraint for an answer that begins outside of reasoning."""
        return AfterReasoning(self, begun=False)

    def begun(self) -> "AfterReasoning":
        """Returns a constraint for an answer that begins in reasoning."""
        return AfterReasoning(self, begun=True)


class AfterReasoning:
    """See `TokenConstraint`.

    Args:
        grammar: What holds behind the reasoning.
        begun: The answer begins in reasoning.
    """

    def __init__(self, grammar: ReasonedGrammar, *, begun: bool) -> None:
        self._grammar, self._marks = grammar, grammar.marks
        self._reasoning = begun
        self._inner: TokenConstraint | None = None if begun else grammar.inner()
        self._opened = -1 if begun or not self._marks.opens else 0  # tokens of the opening mark; -1: no mark
        self._gap = 0  # tokens of white space that may still come
        self._tail = b""  # of the reasoning, as long as the closing mark may begin in it

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        for index, token_id in enumerate(token_ids):
            if self._reasoning:
                self._reason(token_id)
            elif self._opened >= 0:
                self._accept_first(token_id)
            elif self._inner is not None:
                if self._gap and token_id in _gap_ids(self._grammar.vocabulary):
                    self._gap -= 1
                    continue
                self._gap = 0
                self._inner.accept(token_ids[index:])
                return

    def mask(self) -> bytes | None:
        """See `TokenConstraint`."""
        vocabulary = self._grammar.vocabulary
        if self._inner is None:
            if self._reasoning and not self._grammar.binding:
                return None
            if self._reasoning:
                return _reasoning_mask(vocabulary, self._begun_mark(), self._marks.closes)
            return _with(bytes(len(vocabulary.end_mask)), (self._marks.opens[self._opened],))
        mask = self._inner.mask()
        if mask is None:
            return None
        more = () if self._opened < 0 else (self._marks.opens[self._opened],)
        return _with(mask, more + (_gap_ids(vocabulary) if self._gap else ()))

    def forced(self) -> list[int]:
        """See `TokenConstraint`."""
        if self._inner is None or self._opened >= 0 or self._gap:
            return []
        return self._inner.forced()

    @property
    def ended(self) -> bool:
        """See `TokenConstraint`."""
        return self._inner is not None and self._opened < 0 and not self._gap and self._inner.ended

    def _accept_first(self, token_id: int) -> None:
        """Takes a token while the answer may still begin with the opening mark."""
        opens = self._marks.opens[self._opened] == token_id
        if self._inner is not None:
            try:
                self._inner.accept([token_id])
            except TokenRefused:
                self._inner = None
                if not opens:
                    raise
        elif not opens:
            raise TokenRefused("the answer begins neither with reasoning nor with what the grammar says")
        self._opened = self._opened + 1 if opens else -1
        if self._opened == len(self._marks.opens):
            self._opened, self._reasoning, self._inner = -1, True, None

    def _reason(self, token_id: int) -> None:
        marks, rest = self._marks, b""
        if token_id != marks.close_id:
            text = self._tail + self._grammar.vocabulary.token_bytes(token_id)
            at = text.find(marks.closes)
            if at < 0:
                self._tail = text[-(len(marks.closes) - 1) :] if len(marks.closes) > 1 else b""
                return
            rest = text[at + len(marks.closes) :].lstrip()
        self._reasoning, self._tail = False, b""
        self._inner = self._grammar.inner()
        self._gap = 0 if rest else _GAP_TOKENS
        if rest:
            try:
                self._inner.accept(self._grammar.vocabulary.tokens_of(rest))
            except TokenRefused as error:
                raise ConstraintFailed(
                    "the token that ends the reasoning goes on with what is refused"
                ) from error

    def _begun_mark(self) -> bytes:
        """Returns the beginning of the closing mark that the reasoning ends with."""
        closes = self._marks.closes
        sizes = range(len(closes) - 1, 0, -1)
        return next((closes[:size] for size in sizes if self._tail.endswith(closes[:size])), b"")


@functools.lru_cache(64)
def _gap_ids(vocabulary: TokenVocabulary) -> tuple[int, ...]:
    """Returns the tokens of white space that may stand behind reasoning."""
    found = (vocabulary.tokens_of(text) for text in _GAP_TEXTS)
    return tuple(ids[0] for ids in found if len(ids) == 1)


@functools.lru_cache(64)
def _reasoning_mask(vocabulary: TokenVocabulary, begun: bytes, closes: bytes) -> bytes:
    """Returns the tokens of reasoning: all but those that end the answer, or have text behind the mark.

    Args:
        begun: The beginning of the closing mark that was written.
    """
    mask = bytearray(vocabulary.text_mask)
    for token_id in range(vocabulary.vocab_size):
        text = begun + vocabulary.token_bytes(token_id)
        at = text.find(closes)
        if at >= 0 and text[at + len(closes) :].strip():
            mask[token_id // 8] &= ~(1 << token_id % 8)
    return bytes(mask)


def _with(mask: bytes, token_ids: Sequence[int]) -> bytes:
    made = bytearray(mask)
    for token_id in token_ids:
        made[token_id // 8] |= 1 << token_id % 8
    return bytes(made)
