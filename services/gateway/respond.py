"""Answers in OpenAI's shapes that are sent in one piece. Streamed ones are in `chunks.py`.

Gathers the deltas of one or more generations (several prompts of one call) and encodes the result; it
neither waits nor sends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.messages import FinishReason, ModelCard, TokenLogprob, Tokens, Usage

LOWEST_LOGPROB = -9999.0  # what OpenAI sends for "impossible"; JSON has no infinity


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one answer share. `session_id` is empty when there is no session."""

    answer_id: str
    created_s: int
    model: str
    session_id: str = ""

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields of an answer of that kind."""
        return {"id": self.answer_id, "object": kind, "created": self.created_s, "model": self.model}


class Choice:
    """One choice while its parts arrive."""

    __slots__ = ("finish_reason", "logprobs", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None


class Gathered:
    """All choices of one answer: `n` for each prompt, in the order of the prompts."""

    def __init__(self, *, prompts: int, n: int) -> None:
        self._n = n
        self.choices = [Choice() for _ in range(prompts * n)]
        self.usages: list[Usage] = []

    def add(self, tokens: Tokens, prompt: int = 0) -> None:
        """Takes in new text of a prompt's choices."""
        for delta in tokens.deltas:
            choice = self.choices[prompt * self._n + delta.choice]
            if delta.text:
                choice.texts.append(delta.text)
            if delta.logprobs:
                choice.logprobs.extend(delta.logprobs)
            if delta.finish_reason is not None:
                choice.finish_reason = delta.finish_reason


def usage_of(usages: Sequence[Usage]) -> dict[str, Any]:
    """OpenAI's usage object, summed over the generations of a call."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log probabilities as the chat route writes them."""
    return {
        "content": [
            _chat_token(entry.token, entry.logprob)
            | {"top_logprobs": [_chat_token(top.token, top.logprob) for top in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(token.encode())}


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """Log probabilities as the older route writes them; `offset` is the text position of the first token."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry in entries],
        "top_logprobs": [
            {top.token: max(top.logprob, LOWEST_LOGPROB) for top in entry.top}
            | {entry.token: max(entry.logprob, LOWEST_LOGPROB)}
            for entry in entries
        ],
        "text_offset": offsets,
    }


def chat_body(envelope: Envelope, gathered: Gathered, *, logprobs: bool) -> bytes:
    """A `chat.completion`."""
    body = envelope.head("chat.completion")
    body["choices"] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs) if logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(gathered.choices)
    ]
    return _finish(body, envelope, gathered)


def completion_body(envelope: Envelope, gathered: Gathered, *, logprobs: bool) -> bytes:
    """A `text_completion`."""
    body = envelope.head("text_completion")
    body["choices"] = [
        {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": completion_logprobs(choice.logprobs) if logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(gathered.choices)
    ]
    return _finish(body, envelope, gathered)


def _finish(body: dict[str, Any], envelope: Envelope, gathered: Gathered) -> bytes:
    body["usage"] = usage_of(gathered.usages)
    if envelope.session_id:
        body["session_id"] = envelope.session_id
    return msgspec.json.encode(body)


def model_object(card: ModelCard) -> dict[str, Any]:
    """One model as `/v1/models` shows it."""
    return {
        "id": card.name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "ryzanstein",
        "max_model_len": card.context_length,
        "fingerprint": card.fingerprint,
    }
