"""Log probabilities in the form of text completions: tokens with their offsets in the text."""

from collections.abc import Sequence
from typing import Any

from services.gateway.formats.fields.token_logprobs import LOWEST_LOGPROB, shown_token
from shared.messages import TokenLogprob


class TextOffsets:
    """The places of an answer's tokens in its text, for the forms of text completions.

    A token is told once its first character is part of the text that was sent, since until then a stop string
    may take that away. At the end the others follow, at the end of the text: tokens of a stop string, and the
    one that ends a sequence.

    Args:
        start: Characters before the answer, of an echoed prompt.
    """

    def __init__(self, start: int = 0) -> None:
        self._length = start  # of the text that was sent
        self._start = start
        self._waiting: list[TokenLogprob] = []

    def add_prompt(self, text: str) -> None:
        """Counts text of an echoed prompt."""
        self._start += len(text)
        self._length += len(text)

    def take(
        self, text: str, entries: Sequence[TokenLogprob], *, ended: bool
    ) -> list[tuple[TokenLogprob, int]]:
        """Adds text and tokens; returns the tokens that are told now, with their places."""
        self._length += len(text)
        waiting = self._waiting = [*self._waiting, *entries]
        ready: list[tuple[TokenLogprob, int]] = []
        for entry in waiting:
            position = self._length if entry.offset < 0 else self._start + entry.offset
            if entry.offset >= 0 and position >= self._length and not ended:
                break
            ready.append((entry, min(position, self._length)))
        self._waiting = waiting[len(ready) :]
        return ready


def completion_logprobs(entries: Sequence[tuple[TokenLogprob, int]]) -> dict[str, Any]:
    """Log probabilities of a text completion: tokens with their places in the text."""
    return {
        "tokens": [shown_token(entry) for entry, _ in entries],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry, _ in entries],
        "top_logprobs": [_by_text(entry) for entry, _ in entries],
        "text_offset": [offset for _, offset in entries],
    }


def echoed_logprobs(entries: Sequence[TokenLogprob], *, first: bool = True) -> dict[str, Any]:
    """Log probabilities of tokens of an echoed prompt, in the form of a text completion's.

    Args:
        entries: Consecutive tokens of the prompt.
        first: They begin with the prompt's first token, which has none.
    """
    found = completion_logprobs([(entry, max(entry.offset, 0)) for entry in entries])
    if entries and first:
        found["token_logprobs"][0] = found["top_logprobs"][0] = None
    return found


def joined_logprobs(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The log probabilities of an echoed prompt and of the answer to it, as one object."""
    return {name: first[name] + second[name] for name in first}


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives and the token itself; of several with one text the likeliest."""
    found: dict[str, float] = {}
    for one in entry.top:
        found.setdefault(shown_token(one), max(one.logprob, LOWEST_LOGPROB))
    found.setdefault(shown_token(entry), max(entry.logprob, LOWEST_LOGPROB))
    return found
