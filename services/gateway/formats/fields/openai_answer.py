"""Pieces of answers in OpenAI's formats: what all completions have beside their choices."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from services.gateway.answering.answer_cost import entries_of_token
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.resumption.resume_token import ResumeToken
from services.gateway.formats.fields.completion_call import PROMPT_LOGPROBS
from services.gateway.formats.fields.custom_tools import custom_names
from shared.client import Completion
from shared.messages import GenerateRequest, SessionOutcome, TokenLogprob, TopLogprob, Usage

LOWEST_LOGPROB = -9999.0  # what OpenAI sends for "impossible"; JSON has no infinity


_PARTS = "bytes:"  # what OpenAI writes before the bytes of a token that is no whole characters
_MANY_ENTRIES = 5_000  # tokens and log probabilities; each takes 1 to 5 us


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


class PromptShown(NamedTuple):
    """What an answer has besides its text.

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


def shown_of(token: ResumeToken, request: GenerateRequest) -> PromptShown:
    """What the answer to a request has besides its text."""
    prompt_logprobs = PROMPT_LOGPROBS in token.format_data.split()
    return PromptShown(request.echo, prompt_logprobs, request.prompt_ids, custom_names(request))


def encode_answer(body: dict[str, Any], envelope: Envelope, parts: Sequence[Completion]) -> bytes:
    """The bytes of an answer whose choices are in the body already."""
    body["usage"] = usage_of([part.usage for part in parts])
    if envelope.session_id:
        body["session_id"] = envelope.session_id
    if parts[0].session is not None:
        body["session"] = session_of(parts[0].session)
    if resumed := next((part.resumed for part in parts if part.resumed), ""):
        body["resumed"] = resumed
    return msgspec.json.encode(body)
