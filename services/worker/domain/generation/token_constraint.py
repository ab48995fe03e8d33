"""What a grammar says to the scheduler about the next token of a choice.

`services/worker/text/grammars/` implements it; the engine sees only masks.
"""

from collections.abc import Callable, Sequence
from typing import Protocol


class TokenConstraint(Protocol):
    """The state of one choice in a grammar. Used by one thread at a time.

    The state is a pure function of the grammar and of the tokens accepted so far: `accept` with these tokens
    rebuilds it anywhere. `mask`, `forced` and `ended` do not change it.
    """

    def accept(self, token_ids: Sequence[int]) -> None:
        """Moves on by tokens of the choice, in order; an end-of-sequence token may be the last of them.

        Raises:
            TokenRefused: The grammar forbids one of them. The constraint cannot be used any more.
            ConstraintFailed: The grammar is too complex there.
        """
        ...

    def mask(self) -> bytes | None:
        """Returns the tokens that may come next.

        Returns:
            Bit `i % 8` of byte `i // 8` is set if token `i` may come, `ceil(vocab_size / 8)` bytes. The
            end-of-sequence tokens are set exactly if the answer may end here. None: every token may come.
        """
        ...

    def forced(self) -> list[int]:
        """Returns the tokens that must come next, in order; [] if there is a choice.

        Their text has no alternative; as tokens they are those that the tokenizer would choose for it.
        End-of-sequence tokens are never among them.
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether only the end may come: the mask has nothing but end-of-sequence tokens."""
        ...


ConstraintFactory = Callable[[], TokenConstraint]  # one call per choice; a compiled grammar


class ConstraintFailed(Exception):
    """The grammar is too complex at this position: the choice has to fail. All methods may raise it."""


class TokenRefused(ConstraintFailed):
    """A constraint was given a token that it forbids: a bug, or tokens of an answer under another grammar."""


def is_too_complex(error: Exception) -> bool:
    """Whether a constraint failed as its contract announces: then the request's grammar is at fault."""
    return isinstance(error, ConstraintFailed) and not isinstance(error, TokenRefused)
