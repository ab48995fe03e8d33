"""What an answer tells of its prompt: OpenAI's `echo`, and vLLM's `prompt_logprobs`."""

from collections.abc import Sequence
from typing import Any

from services.gateway.completions.whole_responses import LOWEST_LOGPROB, completion_logprobs
from shared.messages import TokenLogprob


def echoed_logprobs(entries: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """Log probabilities of tokens of an echoed prompt, in the form of a text completion's.

    Args:
        entries: Consecutive tokens of the prompt.
        offset: Position of the first one in the text; 0: it is the prompt's first, which has none.
    """
    found = completion_logprobs(entries, offset)
    if entries and not offset:
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
    ranks = {top.token_id: rank for rank, top in enumerate(entry.top, 1)}
    return {
        str(one.token_id): {
            "logprob": max(one.logprob, LOWEST_LOGPROB),
            "rank": ranks.get(one.token_id),
            "decoded_token": one.token,
        }
        for one in (entry, *entry.top)
    }
