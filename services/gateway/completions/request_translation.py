"""Translates OpenAI's requests into `GenerateRequest`s. Pure: ids, seeds and sessions are arguments.

`completion_schema.py` has checked types and ranges, `completion_call.py` the fields that are not known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from services.gateway.answering.priority import priority_of
from services.gateway.completions.answer_forms import form_of
from services.gateway.completions.chat_messages import check_results, messages_of
from services.gateway.completions.chat_tools import tool_use_of
from services.gateway.completions.completion_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingBody,
)
from services.gateway.completions.message_schema import ChatMessageBody
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    GenerateRequest,
    Sampling,
    SessionRef,
    StructuredOutput,
    TemplateOptions,
    ToolUse,
)

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for the older route
# the caller's names of fields of `GenerateRequest`
NAMES_IN_BODY = {
    "template.variables": "chat_template_kwargs",
    "template.reasoning_effort": "reasoning_effort",
    "template": "chat_template_kwargs",
    "continues": "continue_final_message",
}
NEWER_LENGTH = {"max_tokens": "max_completion_tokens"}  # of a body that has the newer field
# options of sampling that a plain body may have too
PLAIN_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "ignore_eos",
)
_SEED_STEP = 0x9E3779B97F4A7C15 % 2**63  # odd, so all prompts of a call have different seeds


class ContinuableBody(Protocol):
    """A body with messages, the last of which may be continued."""

    continue_final_message: bool | None
    add_generation_prompt: bool | None


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of a request that do not come from its body."""

    request_id: str
    tenant: str
    seed: int
    session: SessionRef | None


def given_values(body: object, names: Iterable[str]) -> dict[str, Any]:
    """The sampling options that a body has: a default that is named counts as a value on the wire."""
    found = {name: value for name in names if (value := getattr(body, name)) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found


def sampling_of(body: SamplingBody, *, seed: int, max_tokens: int, logprobs: int) -> Sampling:
    """The sampling options of a body; `seed` is used if the body has none."""
    wanted = given_values(body, (*PLAIN_SAMPLING, "stop_token_ids", "min_tokens"))
    if body.prompt_logprobs is not None:
        if body.stream:
            raise InvalidRequest(
                "`prompt_logprobs` is not streamed: leave `stream` out, or use `echo` with `logprobs` on "
                "/v1/completions",
                param="prompt_logprobs",
            )
        wanted["prompt_logprobs"] = body.prompt_logprobs
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
    if body.prompt_token_ids is not None:
        return _chat_of_ids(body, origin, body.prompt_token_ids)
    if body.messages is None:
        raise InvalidRequest("`messages` is required", param="messages")
    continues = continues_last(body, body.messages)
    messages = messages_of(body.messages)
    answers = any(message.role == "assistant" for message in messages)
    check_results(messages, whole=answers or origin.session is None)
    return msgspec.structs.replace(
        _chat_without_prompt(body, origin),
        messages=messages,
        template=_template_of(body),
        generation_prompt=continues or body.add_generation_prompt is not False,
        continues=continues,
    )


def _chat_without_prompt(body: ChatCompletionRequest, origin: Origin) -> GenerateRequest:
    return GenerateRequest(
        request_id=origin.request_id,
        model=body.model,
        sampling=sampling_of(
            body,
            seed=origin.seed,
            max_tokens=body.max_completion_tokens or body.max_tokens or 0,
            logprobs=(body.top_logprobs or 0) if body.logprobs else -1,
        ),
        session=origin.session,
        tenant=origin.tenant,
        delivery=_delivery(body),
        tools=tool_use_of(body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False),
        structured=_structure_of(body),
        truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
        prompt_ids=bool(body.return_token_ids),
        priority=priority_of(body.priority),
    )


def continues_last(body: ContinuableBody, messages: Sequence[ChatMessageBody]) -> bool:
    """Whether the answer goes on from the last message, by the body's field or by the message's own.

    Raises:
        InvalidRequest: That message is not the assistant's, or fields contradict each other; names one.
    """
    last = len(messages) - 1
    for index, message in enumerate(messages[:-1]):
        if message.prefix:
            raise InvalidRequest(
                f"`messages[{index}].prefix` is for the last message, which the answer goes on from",
                param=f"messages[{index}].prefix",
            )
    if not body.continue_final_message and not messages[last].prefix:
        return False
    if body.continue_final_message is False:
        raise InvalidRequest(
            f"`continue_final_message` is false, and `messages[{last}].prefix` is true",
            param="continue_final_message",
        )
    if messages[last].role != "assistant":
        raise InvalidRequest(
            f"`continue_final_message` needs a last message of the assistant's, got {messages[last].role!r}",
            param="continue_final_message",
        )
    if body.add_generation_prompt:
        raise InvalidRequest(
            "`add_generation_prompt` begins a new message, and `continue_final_message` goes on with the "
            "last one: leave one out",
            param="add_generation_prompt",
        )
    return True


def _chat_of_ids(body: ChatCompletionRequest, origin: Origin, prompt: list[int]) -> GenerateRequest:
    """The generation of a chat completion whose prompt is token ids: its answer has parts all the same."""
    for name in ("messages", "continue_final_message", "chat_template_kwargs", "reasoning_effort"):
        if getattr(body, name):
            raise InvalidRequest(
                f"`{name}` is for messages, and `prompt_token_ids` is the whole prompt: leave one out",
                param=name,
            )
    request = _chat_without_prompt(body, origin)
    tools = request.tools or ToolUse(tools=[], choice="none")
    return msgspec.structs.replace(request, prompt_token_ids=pack_tokens(prompt), tools=tools)


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
    found, names = form_of(vars(body)), NAMES_IN_BODY
    if isinstance(body, ChatCompletionRequest) and body.max_completion_tokens:
        names = names | NEWER_LENGTH
    if found is None:
        return names
    return names | dict.fromkeys(("structured.definition", "structured.choices", "structured"), found[0])


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
            sampling=sampling if body.seed is not None else _with_own_seed(sampling, index),
            session=origin.session,
            tenant=origin.tenant,
            delivery=delivery,
            structured=structured,
            truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
            priority=priority_of(body.priority),
            prompt_only=body.max_tokens == 0,
            echo=bool(body.echo),
            prompt_ids=bool(body.return_token_ids),
        )
        for index, (request_id, prompt) in enumerate(zip(request_ids, body.prompt, strict=True))
    ]


def _with_own_seed(sampling: Sampling, index: int) -> Sampling:
    """The sampling of a call's prompt number `index`; the first keeps the call's seed."""
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index * _SEED_STEP) % 2**63)
