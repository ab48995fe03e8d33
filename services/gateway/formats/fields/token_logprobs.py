"""Log probabilities of single tokens as answers show them, and those of prompts in vLLM's form."""

from collections.abc import Sequence
from typing import Any

from shared.messages import TokenLogprob, TopLogprob

LOWEST_LOGPROB = -9999.0  # what OpenAI sends for "impossible"; JSON has no infinity


_PARTS = "bytes:"  # what OpenAI writes before the bytes of a token that is no whole characters


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
