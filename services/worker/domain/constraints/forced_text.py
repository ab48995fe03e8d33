"""Forces the text that an output begins with, and leaves its spelling to the model.

An answer that goes on from a given text may have been cut inside a token. The last tokens of that text are
then left out of the prompt (`text/token_speller.py`), and the output has to begin with their text: with the
same tokens, with others, or with a token that reaches beyond it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.worker.domain.generation.token_constraint import (
    ConstraintFailed,
    TokenConstraint,
    TokenRefused,
)


class Speller(Protocol):
    """Knows which tokens can spell a text."""

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token; none for special tokens and unknown ids."""
        ...

    def mask(self, text: bytes) -> bytes:
        """Returns the tokens that may come next where a text is to come.

        These begin with the text, or are a beginning of it whose rest can be spelled. The mask is that of
        `TokenConstraint.mask`, and may be shorter than the vocabulary.
        """
        ...


class ForcedText:
    """See `TokenConstraint`: the text, then whatever `inner` allows, which holds for the text as well.

    Args:
        text: UTF-8 bytes, which need not be whole characters.
        inner: The grammar of the output; None if it has none.
        barred: Tokens that end the output, and so spell nothing.
    """

    def __init__(
        self, speller: Speller, text: bytes, inner: TokenConstraint | None, barred: frozenset[int]
    ) -> None:
        self.inner = inner
        self._speller = speller
        self._left = text
        self._barred = barred

    @property
    def is_over(self) -> bool:
        """Whether the whole text has come, so that `inner` alone decides."""
        return not self._left

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        for token_id in token_ids:
            if not self._left:
                break
            data = b"" if token_id in self._barred else self._speller.token_bytes(token_id)
            if not data or not (data.startswith(self._left) or self._left.startswith(data)):
                raise TokenRefused(f"token {token_id} does not go on with the given text")
            self._left = self._left[len(data) :]
        if self.inner is not None:
            self.inner.accept(token_ids)

    def mask(self) -> bytes | None:
        """See `TokenConstraint`."""
        allowed = self.inner.mask() if self.inner is not None else None
        if not self._left:
            return allowed
        bits = int.from_bytes(self._speller.mask(self._left), "little")
        for token_id in self._barred:
            bits &= ~(1 << token_id)
        if allowed is not None:
            bits &= int.from_bytes(allowed, "little")
        if not bits:
            raise ConstraintFailed(
                "the answer cannot go on from the given text in the form that it must have"
            )
        return bits.to_bytes((bits.bit_length() + 7) // 8, "little")

    def forced(self) -> list[int]:
        """See `TokenConstraint`."""
        return self.inner.forced() if self.inner is not None else []

    @property
    def ended(self) -> bool:
        """See `TokenConstraint`."""
        return not self._left and self.inner is not None and self.inner.ended


@dataclass(slots=True, eq=False)
class RepeatedText:
    """Counts the tokens of an output that only repeat the text which it is forced to begin with.

    They stand for tokens of the prompt, so they do not count as output. At most as many are counted as were
    left out of the prompt.

    Attributes:
        left: What is not repeated yet.
        most: Tokens that were left out of the prompt.
    """

    speller: Speller
    left: bytes
    most: int

    def count_token(self, token_id: int) -> int:
        """Takes the next token of the output; returns 1 if it is only a repetition, else 0."""
        size = len(self.speller.token_bytes(token_id))
        if not self.most or not size or size > len(self.left):  # without size: it ends the output
            self.most = 0
            return 0
        self.most -= 1
        self.left = self.left[size:]
        return 1
