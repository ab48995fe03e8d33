"""Leaves the text that a caller has out of an answer that goes on from it."""

from collections.abc import Callable, Sequence

from services.worker.domain.answers.choice_state import Detokenizer

_TAIL = 8  # tokens before the answer that the first characters may depend on


class ContinuedDetokenizer:
    """A detokenizer of an answer that begins with characters which its caller has.

    Args:
        inner: Makes text of all tokens.
        known: Characters at the beginning that are left out.
    """

    __slots__ = ("_inner", "_known")

    def __init__(self, inner: Detokenizer, known: int) -> None:
        self._inner = inner
        self._known = known

    def feed(self, token_id: int) -> str:
        """See `Detokenizer`."""
        text = self._inner.feed(token_id)
        return self._new(text) if self._known else text

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._new(self._inner.flush())

    def _new(self, text: str) -> str:
        known = self._known
        self._known = max(0, known - len(text))
        return text[known:]


def continued_detokenizer(
    make: Callable[[], Detokenizer], kept: Sequence[int], dropped: Sequence[int]
) -> Detokenizer:
    """Returns the detokenizer of an answer that goes on from a text.

    Args:
        make: Makes a detokenizer.
        kept: Tokens of the text that the answer follows.
        dropped: Tokens of the text whose characters the answer repeats.
    """
    tail = kept[-_TAIL:]
    inner, whole = make(), make()
    before = sum(len(inner.feed(token_id)) for token_id in tail)
    size = sum(len(whole.feed(token_id)) for token_id in (*tail, *dropped)) + len(whole.flush())
    return ContinuedDetokenizer(inner, size - before)
