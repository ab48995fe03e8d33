"""Translates OpenAI's requests into `GenerateRequest`s. Pure: ids, seeds and sessions are arguments.

`completion_schema.py` has checked types and ranges, `unsupported_fields.py` the fields that are not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from services.gateway.completions.answer_forms import form_of
from services.gateway.completions.chat_messages import check_results, messages_of
from services.gateway.completions.chat_tools import tool_use_of
from services.gateway.completions.completion_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingBody,
)
from services.gateway.field_policy.priority import priority_of
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    GenerateRequest,
    Sampling,
    SessionRef,
    StructuredOutput,
    TemplateOptions,
)

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for the older route
# the caller's names of fields of `GenerateRequest`
NAMES_IN_BODY = {
    "template.variables": "chat_template_kwargs",
    "template.reasoning_effort": "reasoning_effort",
    "template": "chat_template_kwargs",
}
_SEED_STEP = 0x9E3779B97F4A7C15 % 2**63  # odd, so all prompts of a call have different seeds


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of a request that do not come from its body."""

    request_id: str
    tenant: str
    seed: int
    session: SessionRef | None


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
        "stop_token_ids",
        "min_tokens",
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
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    messages = messages_of(body.messages)
    answers = any(message.role == "assistant" for message in messages)
    check_results(messages, whole=answers or origin.session is None)
    parallel = body.parallel_tool_calls is not False
    return GenerateRequest(
        request_id=origin.request_id,
        model=body.model,
        messages=messages,
        sampling=sampling_of(
            body,
            seed=origin.seed,
            max_tokens=body.max_completion_tokens or body.max_tokens or 0,
            logprobs=logprobs,
        ),
        session=origin.session,
        tenant=origin.tenant,
        delivery=_delivery(body),
        tools=tool_use_of(body.tools, body.tool_choice, parallel=parallel),
        structured=_structure_of(body),
        template=_template_of(body),
        truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
        priority=priority_of(body.priority),
    )


def _structure_of(body: SamplingBody) -> StructuredOutput | None:
    found = form_of(vars(body))
    return found[1] if found is not None else None


def _template_of(body: ChatCompletionRequest) -> TemplateOptions | None:
    if body.reasoning_effort is None and not body.chat_template_kwargs:
        return None
    variables = body.chat_template_kwargs
    return TemplateOptions(
        reasoning_effort=body.reasoning_effort or "",
        variables=msgspec.json.encode(variables).decode() if variables else "",
    )


def field_names_of(body: SamplingBody) -> dict[str, str]:
    """The caller's names of fields of `GenerateRequest`, for a leader's errors."""
    found = form_of(vars(body))
    if found is None:
        return NAMES_IN_BODY
    of_form = dict.fromkeys(("structured.definition", "structured.choices", "structured"), found[0])
    return NAMES_IN_BODY | of_form


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
    delivery, structured = _delivery(body), _structure_of(body)
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
            structured=structured,
            truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
            priority=priority_of(body.priority),
            prompt_only=body.max_tokens == 0,
            echo=bool(body.echo),
        )
        for place, (request_id, prompt) in enumerate(zip(request_ids, body.prompt, strict=True))
    ]


def _with_own_seed(sampling: Sampling, place: int) -> Sampling:
    """The sampling of a call's prompt number `place`; the first keeps the call's seed."""
    return msgspec.structs.replace(sampling, seed=(sampling.seed + place * _SEED_STEP) % 2**63)
