"""How a token is shown beside its log probability: its text, and its bytes if the text lacks them."""

from collections.abc import Callable
from typing import NamedTuple


class TokenSpelling(NamedTuple):
    """A token as callers see it.

    Attributes:
        text: Its text; parts of characters are U+FFFD.
        raw: Its bytes if they are no whole characters; empty if it adds nothing to the text of an answer.
            None: those of `text`.
    """

    text: str
    raw: bytes | None = None


SpellToken = Callable[[int], TokenSpelling]


def spell(text: str, added: bytes) -> TokenSpelling:
    """Returns how a token is shown.

    Args:
        added: The bytes that it adds to the text of an answer.
    """
    return TokenSpelling(text, None if text.encode() == added else added)
