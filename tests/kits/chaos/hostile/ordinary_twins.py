"""Ordinary requests of the size of others: as many tokens of prompt, found in the cache, and generated.

What a campaign costs another caller beside what its twins cost says whether its content is dear, or its size.
"""

import random
import time
from typing import Any, NamedTuple

from tests.kits.chaos.hostile.hostile_case import COMPLETIONS, HostileCase

_FIRST_ID, _VOCABULARY = 300, 1000  # ordinary tokens of SmolLM2 and of the demo model
_COMMON = [random.Random("common").randrange(_FIRST_ID, _VOCABULARY) for _ in range(8192)]


class Size(NamedTuple):
    """What an answered request was.

    Attributes:
        began_s: When it was sent, from the beginning of its campaign.
        prompt: Tokens of its prompt.
        cached: Those of them that were in the cache.
        generated: Tokens of each choice, forced ones included.
        choices: Their number.
    """

    began_s: float
    prompt: int
    cached: int
    generated: int
    choices: int


def size_of(began_s: float, answer: dict[str, Any]) -> Size | None:
    """Returns the size of a request by its answer, in any API; None if it does not say."""
    usage = answer.get("usage") or {}
    choices = max(1, len(answer.get("choices", [1])))
    if "prompt_tokens" in usage:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Size(began_s, usage["prompt_tokens"], cached, usage["completion_tokens"] // choices, choices)
    if "input_tokens" not in usage:
        return None
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    read = usage.get("cache_read_input_tokens") or 0  # of Messages, where the counts add up to the prompt
    prompt = usage["input_tokens"] + read + (usage.get("cache_creation_input_tokens") or 0)
    return Size(began_s, prompt, cached + read, usage["output_tokens"], 1)


def twin_of(number: int, size: Size) -> HostileCase:
    """Returns an ordinary request of a size, whose prompt has as many tokens that no other one has."""
    draw = random.Random(f"twin {number} {time.time_ns()}")
    prompt = _COMMON[: size.cached]
    prompt += [draw.randrange(_FIRST_ID, _VOCABULARY) for _ in range(max(1, size.prompt - size.cached))]
    body = {"prompt": prompt, "max_tokens": max(1, size.generated), "ignore_eos": True, "n": size.choices,
            "temperature": 1, "seed": number}  # fmt: skip
    return HostileCase("twin", COMPLETIONS, body)
