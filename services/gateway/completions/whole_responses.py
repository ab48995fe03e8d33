"""Answers in OpenAI's formats that are sent in one piece. Streamed ones are in `chunk_writers.py`.

Encodes one or more whole completions (several prompts of one call) as one answer. Large ones are encoded in a
thread, since the largest take a second.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from services.gateway.answering.answer_cost import entries_of_token
from services.gateway.answering.envelope import Envelope
from services.gateway.completions.logprob_forms import (
    TextOffsets,
    completion_logprobs,
    echoed_logprobs,
    joined_logprobs,
    prompt_logprobs,
    token_fields,
)
from services.gateway.completions.message_parts import message_of
from shared.client import Choice, Completion
from shared.codec import unpack_tokens
from shared.messages import ModelCard, SessionOutcome, TextPart, TokenLogprob, Usage

_MANY_ENTRIES = 5_000  # tokens and log probabilities; each takes 1 to 5 us


def head_of(envelope: Envelope, kind: str) -> dict[str, Any]:
    """The first fields of an answer of that kind."""
    head: dict[str, Any] = {
        "id": envelope.answer_id,
        "object": kind,
        "created": envelope.created_s,
        "model": envelope.model,
        "system_fingerprint": envelope.fingerprint or None,
    }
    if envelope.service_tier:
        head["service_tier"] = envelope.service_tier
    return head


def usage_of(usages: Sequence[Usage]) -> dict[str, Any]:
    """OpenAI's usage object, summed over the generations of a call.

    `fetched_tokens` is an addition to it: the cached tokens whose KV came from the store.
    """
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "fetched_tokens": sum(usage.fetched_tokens for usage in usages),
        },
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning_tokens for usage in usages)},
    }


def session_of(outcome: SessionOutcome) -> dict[str, Any]:
    """The field `session` of answers: what became of the turn."""
    session: dict[str, Any] = {
        "state": outcome.state,
        "turns": outcome.turns,
        "version": outcome.version,
        "stored": outcome.stored,
    }
    if outcome.reason:
        session["reason"] = outcome.reason
    if outcome.replaced:
        session["replaced"] = True
    return session


def chat_logprobs(entries: Sequence[TokenLogprob]) -> msgspec.Raw:
    """Log probabilities of a chat answer, encoded: as objects they would take ten times the memory."""
    content = b",".join(
        msgspec.json.encode(token_fields(entry) | {"top_logprobs": [token_fields(top) for top in entry.top]})
        for entry in entries
    )
    return msgspec.Raw(b'{"content":[' + content + b'],"refusal":null}')


class PromptShown(NamedTuple):
    """What an answer tells beside its text.

    Attributes:
        echo: The text of its prompt, and the log probabilities of that.
        prompt_logprobs: vLLM's field of that name.
        token_ids: The ids of all tokens, in vLLM's fields.
        custom: Names of the request's custom tools.
    """

    echo: bool = False
    prompt_logprobs: bool = False
    token_ids: bool = False
    custom: Collection[str] = frozenset()


NOT_SHOWN = PromptShown()
Encode = Callable[[Envelope, Sequence[Completion], bool], bytes]


async def encode_in_time(
    encode: Encode, envelope: Envelope, parts: Sequence[Completion], logprobs: int
) -> bytes:
    """Encodes an answer; in a thread if it is large. `logprobs` as in `Sampling`."""
    tokens = sum(part.usage.completion_tokens + len(part.choices[0].prompt_logprobs) for part in parts)
    if tokens * entries_of_token(logprobs) > _MANY_ENTRIES:
        return await asyncio.to_thread(encode, envelope, parts, logprobs >= 0)
    return encode(envelope, parts, logprobs >= 0)


def chat_body(
    envelope: Envelope, parts: Sequence[Completion], logprobs: bool, *, shown: PromptShown = NOT_SHOWN
) -> bytes:
    """A `chat.completion`; there is one part."""
    body = head_of(envelope, "chat.completion")
    body["choices"] = [
        {
            "index": index,
            "message": message_of(choice.parts or [TextPart(text=choice.text)], shown.custom),
            "logprobs": chat_logprobs(choice.logprobs) if logprobs else None,
            "finish_reason": choice.finish_reason,
            **({"token_ids": choice.token_ids} if shown.token_ids else {}),
        }
        for index, choice in enumerate(_choices(parts))
    ]
    if shown.prompt_logprobs:
        body["prompt_logprobs"] = prompt_logprobs(parts[0].choices[0].prompt_logprobs)
    if shown.token_ids:
        body["prompt_token_ids"] = unpack_tokens(parts[0].choices[0].packed_prompt)
    return _finish(body, envelope, parts)


def completion_body(
    envelope: Envelope, parts: Sequence[Completion], logprobs: bool, *, shown: PromptShown = NOT_SHOWN
) -> bytes:
    """A `text_completion`; one part for each prompt, their choices numbered through."""
    body = head_of(envelope, "text_completion")
    body["choices"] = [
        {"index": index, **fields}
        for index, fields in enumerate(
            _completion_choice(choice, part.choices[0], logprobs, shown)
            for part in parts
            for choice in part.choices
        )
    ]
    return _finish(body, envelope, parts)


def _completion_choice(choice: Choice, first: Choice, logprobs: bool, shown: PromptShown) -> dict[str, Any]:
    """One choice; the first one of its prompt has what is told of the prompt."""
    entries: dict[str, Any] | None = None
    if logprobs:
        offsets = TextOffsets(len(first.prompt_text))
        entries = completion_logprobs(offsets.take(choice.text, choice.logprobs, ended=True))
        if shown.echo:
            entries = joined_logprobs(echoed_logprobs(first.prompt_logprobs), entries)
    fields: dict[str, Any] = {
        "text": first.prompt_text + choice.text,
        "logprobs": entries,
        "finish_reason": choice.finish_reason,
    }
    if shown.prompt_logprobs:
        fields["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs)
    if shown.token_ids:
        fields |= {"prompt_token_ids": unpack_tokens(first.packed_prompt), "token_ids": choice.token_ids}
    return fields


def _choices(parts: Sequence[Completion]) -> list[Choice]:
    """The choices of all prompts, in the order of the prompts."""
    return parts[0].choices if len(parts) == 1 else [choice for part in parts for choice in part.choices]


def _finish(body: dict[str, Any], envelope: Envelope, parts: Sequence[Completion]) -> bytes:
    body["usage"] = usage_of([part.usage for part in parts])
    if envelope.session_id:
        body["session_id"] = envelope.session_id
    if parts[0].session is not None:
        body["session"] = session_of(parts[0].session)
    return msgspec.json.encode(body)


def model_object(card: ModelCard) -> dict[str, Any]:
    """One model as `/v1/models` shows it, with the fields of OpenAI's clients and of Anthropic's."""
    created = datetime.fromtimestamp(card.created_s, UTC)
    return {
        "id": card.name,
        "object": "model",
        "type": "model",
        "display_name": card.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "created": card.created_s,
        "owned_by": "ryzanstein",
        "max_model_len": card.context_length,
        "fingerprint": card.fingerprint,
        "default_sampling": None if card.sampling is None else msgspec.to_builtins(card.sampling),
    }
