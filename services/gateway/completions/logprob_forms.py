"""Log probabilities in the form of text completions, of answers and of prompts: OpenAI's, and vLLM's."""

from collections.abc import Sequence
from typing import Any

from shared.messages import TokenLogprob, TopLogprob

LOWEST_LOGPROB = -9999.0  # what OpenAI sends for "impossible"; JSON has no infinity
_PARTS = "bytes:"  # what OpenAI writes before the bytes of a token that is no whole characters


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


def shown_token(entry: TokenLogprob | TopLogprob) -> str:
    r"""A token's text where there is no field for its bytes: `bytes:\xe2\x98` for parts of characters."""
    return part_text(entry.raw) if entry.raw else entry.token


def part_text(raw: bytes) -> str:
    """The text of a token that is no whole characters, as OpenAI's text completions have it."""
    return f"{_PARTS}{escaped(raw)}"


def escaped(raw: bytes) -> str:
    r"""Bytes as text: what is no whole character is written as `\xe2`."""
    return raw.decode(errors="backslashreplace")


def token_bytes(entry: TokenLogprob | TopLogprob) -> list[int] | None:
    """The bytes that a token adds to the text; None if it adds none, as special tokens do."""
    if entry.raw is None:
        return list(entry.token.encode())
    return list(entry.raw) or None


def token_fields(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    """A token with its log probability, as chat completions and the Responses API show it."""
    return {
        "token": escaped(entry.raw) if entry.raw else entry.token,
        "logprob": max(entry.logprob, LOWEST_LOGPROB),
        "bytes": token_bytes(entry),
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


def prompt_logprobs(entries: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """The log probabilities of a prompt's tokens as vLLM shows them: by token id, the first one null.

    The rank of a token that is not among the alternatives is not known, and null.
    """
    return [None if not index else _alternatives(entry) for index, entry in enumerate(entries)]


def _alternatives(entry: TokenLogprob) -> dict[str, Any]:
    found = {
        str(top.token_id): _alternative(top.logprob, rank, shown_token(top))
        for rank, top in enumerate(entry.top, 1)
    }
    found.setdefault(str(entry.token_id), _alternative(entry.logprob, None, shown_token(entry)))
    return found


def _alternative(logprob: float, rank: int | None, token: str) -> dict[str, Any]:
    return {"logprob": max(logprob, LOWEST_LOGPROB), "rank": rank, "decoded_token": token}


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives and the token itself; of several with one text the likeliest."""
    found: dict[str, float] = {}
    for one in entry.top:
        found.setdefault(shown_token(one), max(one.logprob, LOWEST_LOGPROB))
    found.setdefault(shown_token(entry), max(entry.logprob, LOWEST_LOGPROB))
    return found
