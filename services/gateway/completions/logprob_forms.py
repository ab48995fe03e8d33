"""Log probabilities in the form of text completions, of answers and of prompts: OpenAI's, and vLLM's."""

from collections.abc import Sequence
from typing import Any

from shared.messages import TokenLogprob

LOWEST_LOGPROB = -9999.0  # what OpenAI sends for "impossible"; JSON has no infinity


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """Log probabilities of a text completion; `offset` is the text position of the first token."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry in entries],
        "top_logprobs": [_by_text(entry) for entry in entries],
        "text_offset": offsets,
    }


def echoed_logprobs(
    entries: Sequence[TokenLogprob], offset: int = 0, *, first: bool = True
) -> dict[str, Any]:
    """Log probabilities of tokens of an echoed prompt, in the form of a text completion's.

    Args:
        entries: Consecutive tokens of the prompt.
        offset: Position of the first one in the text.
        first: They begin with the prompt's first token, which has none.
    """
    found = completion_logprobs(entries, offset)
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
    return [None if not place else _alternatives(entry) for place, entry in enumerate(entries)]


def _alternatives(entry: TokenLogprob) -> dict[str, Any]:
    found = {
        str(top.token_id): _alternative(top.logprob, rank, top.token) for rank, top in enumerate(entry.top, 1)
    }
    found.setdefault(str(entry.token_id), _alternative(entry.logprob, None, entry.token))
    return found


def _alternative(logprob: float, rank: int | None, token: str) -> dict[str, Any]:
    return {"logprob": max(logprob, LOWEST_LOGPROB), "rank": rank, "decoded_token": token}


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives and the token itself; of several with one text the likeliest."""
    found: dict[str, float] = {}
    for one in entry.top:
        found.setdefault(one.token, max(one.logprob, LOWEST_LOGPROB))
    found.setdefault(entry.token, max(entry.logprob, LOWEST_LOGPROB))
    return found
