"""Translates OpenAI's requests into `GenerateRequest`s. Pure: ids, seeds and sessions are arguments.

Decides which fields of a body are used, which are refused because they would change the meaning of the answer
or are misspelt, and which are only counted. `completion_schema.py` has checked types and ranges.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from services.gateway.completions.completion_schema import (
    ChatCompletionRequest,
    ChatMessageBody,
    CompletionRequest,
    SamplingBody,
)
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest, Role, Sampling, SessionRef

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for the older route
MISSPELT = 0.85  # how similar a field must be to a known one to count as misspelt
_SEED_STEP = 0x9E3779B97F4A7C15 % 2**63  # odd, so all prompts of a call have different seeds
_LONGEST_FIELD = 64  # comparing takes time; no known name is nearly as long
_MAX_COMPARED = 16  # unknown fields of a body that are compared; some 0.2 ms each
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

# Fields that would change the answer if they were supported, and their values that change nothing. `False`
# and `0` are equal in Python, as needed here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "echo": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "continue_final_message": (False,),
    "chat_template": (),
}
# OpenAI's fields that do not change the answer: they are accepted and counted, with any value.
_ACCEPTED = frozenset(
    {
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "verbosity",
        # of other servers that speak this API
        "add_generation_prompt",
        "length_penalty",
        "priority",
        "request_id",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)
_NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "refusal": ("",),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of a request that do not come from its body."""

    request_id: str
    tenant: str
    seed: int
    session: SessionRef | None


def refuse_unsupported(body: SamplingBody) -> list[str]:
    """Refuses fields that would change the answer and are not supported, and misspelt ones.

    Only the first `_MAX_COMPARED` unknown fields are compared with known ones.

    Returns:
        The names of the fields that are not known, shortened.

    Raises:
        InvalidRequest: Names the field.
    """
    extra = body.model_extra
    unknown: list[str] = []
    if extra:
        for field, value in extra.items():
            neutral = _NEUTRAL.get(field)
            if neutral is None:
                if len(unknown) < _MAX_COMPARED:
                    _refuse_misspelt(field, type(body))
                unknown.append(field[:_LONGEST_FIELD])
            else:
                _refuse_unless_neutral(field, value, neutral)
    if isinstance(body, ChatCompletionRequest):
        for place, message in enumerate(body.messages):
            for field, value in (message.model_extra or {}).items():
                neutral = _NEUTRAL_IN_MESSAGE.get(field)
                if neutral is not None:
                    _refuse_unless_neutral(f"messages[{place}].{field}", value, neutral)
    return unknown


def _refuse_misspelt(field: str, kind: type[SamplingBody]) -> None:
    """Raises `InvalidRequest` if an unknown field is nearly a known one.

    Fields that other servers know (`_ACCEPTED`) are never misspelt.
    """
    if field in _ACCEPTED or len(field) > _LONGEST_FIELD:
        return
    meant = difflib.get_close_matches(field, [*kind.model_fields, *_NEUTRAL], n=1, cutoff=MISSPELT)
    if meant:
        raise InvalidRequest(f"unknown field `{field}`: did you mean `{meant[0]}`?", param=field)


def _refuse_unless_neutral(field: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if value is None or value in neutral:
        return
    allowed = " or ".join(["absent", *(repr(item) for item in neutral if item != "")])
    raise InvalidRequest(f"`{field}` is not supported: it must be {allowed}", param=field)


def sampling_of(body: SamplingBody, *, seed: int, max_tokens: int, logprobs: int) -> Sampling:
    """The sampling options of a body; `seed` is used if the body has none."""
    wanted: dict[str, Any] = {}
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "n",
        "ignore_eos",
    ):
        value = getattr(body, name)
        if value is not None:
            wanted[name] = value
    if body.prompt_logprobs is not None:
        if body.stream:
            raise InvalidRequest(
                "`prompt_logprobs` is not streamed: leave `stream` out, or use `echo` with `logprobs` on "
                "/v1/completions",
                param="prompt_logprobs",
            )
        wanted["prompt_logprobs"] = body.prompt_logprobs
    if wanted.get("top_k") == -1:
        wanted["top_k"] = 0
    return Sampling(
        seed=seed if body.seed is None else body.seed % 2**63,
        max_tokens=max_tokens,
        stop=body.stop,
        logit_bias=body.logit_bias,
        logprobs=logprobs,
        **wanted,
    )


def _delivery(body: SamplingBody) -> Literal["stream", "whole"]:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("`stream_options` needs `stream` to be true", param="stream_options")
    return "stream" if body.stream else "whole"


def chat_request(body: ChatCompletionRequest, origin: Origin) -> GenerateRequest:
    """The generation that a chat completion asks for.

    Raises:
        InvalidRequest: Fields contradict each other; names one.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    return GenerateRequest(
        request_id=origin.request_id,
        model=body.model,
        messages=messages_of(body.messages),
        sampling=sampling_of(
            body,
            seed=origin.seed,
            max_tokens=body.max_completion_tokens or body.max_tokens or 0,
            logprobs=logprobs,
        ),
        session=origin.session,
        tenant=origin.tenant,
        delivery=_delivery(body),
        truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
    )


def messages_of(messages: Sequence[ChatMessageBody]) -> list[ChatMessage]:
    """The messages of a body as wire messages."""
    return [
        ChatMessage(role=_ROLES[message.role], content=message.content, name=message.name or "")
        for message in messages
    ]


def completion_requests(
    body: CompletionRequest, origin: Origin, request_ids: Sequence[str]
) -> list[GenerateRequest]:
    """One generation for each prompt, in their order; `request_ids` has an id for each of them.

    Without a seed in the body each prompt has a seed of its own, so that equal prompts get different answers;
    a seed in the body holds for all of them.

    Raises:
        InvalidRequest: Fields contradict each other; names one.
    """
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("`best_of` is not supported: it must be absent or equal to `n`", param="best_of")
    if len(body.prompt) > 1 and origin.session is not None:
        raise InvalidRequest(
            "a session takes one prompt at a time: send one, or no session id", param="prompt"
        )
    sampling = sampling_of(
        body,
        seed=origin.seed,
        max_tokens=COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=-1 if body.logprobs is None else body.logprobs,
    )
    if body.echo and body.logprobs is not None:
        most = max(sampling.prompt_logprobs, body.logprobs)
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=most)
    delivery = _delivery(body)
    return [
        GenerateRequest(
            request_id=request_id,
            model=body.model,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else pack_tokens(prompt),
            sampling=sampling if body.seed is not None else _with_own_seed(sampling, place),
            session=origin.session,
            tenant=origin.tenant,
            delivery=delivery,
            truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
            prompt_only=body.max_tokens == 0,
            echo=bool(body.echo),
        )
        for place, (request_id, prompt) in enumerate(zip(request_ids, body.prompt, strict=True))
    ]


def _with_own_seed(sampling: Sampling, place: int) -> Sampling:
    """The sampling of a call's prompt number `place`; the first keeps the call's seed."""
    return msgspec.structs.replace(sampling, seed=(sampling.seed + place * _SEED_STEP) % 2**63)
