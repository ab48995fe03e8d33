"""Encodes whole answers, large ones beside the event loop: the largest take a second."""

import asyncio
from collections.abc import Sequence

from services.gateway.completions.cost import entries_of_token
from services.gateway.completions.whole_responses import Envelope, chat_body, completion_body
from services.gateway.streams.resume_token import Kind
from shared.client import Completion

_MANY_ENTRIES = 5_000  # tokens and log probabilities; each takes 1 to 5 us


async def encoded(kind: Kind, envelope: Envelope, parts: Sequence[Completion], logprobs: int) -> bytes:
    """The body of an answer; `logprobs` as in `Sampling`."""
    shape = chat_body if kind == "chat" else completion_body
    tokens = sum(part.usage.completion_tokens for part in parts)
    if tokens * entries_of_token(logprobs) > _MANY_ENTRIES:
        return await asyncio.to_thread(shape, envelope, parts, logprobs=logprobs >= 0)
    return shape(envelope, parts, logprobs=logprobs >= 0)
