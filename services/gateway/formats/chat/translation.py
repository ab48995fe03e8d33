"""Translates chat completions into `GenerateRequest`s. Pure: ids, seeds and sessions are arguments.

`schema.py` has checked types and ranges, `call.py` the fields that are not known.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from services.gateway.answering.intake.new_calls import priority_of
from services.gateway.formats.chat.schema import ChatCompletionRequest, ChatMessageBody, ToolCallBody
from services.gateway.formats.chat.tools import tool_use_of
from services.gateway.formats.fields.custom_tools import arguments_of
from services.gateway.formats.fields.sampling import Origin, delivery_of, sampling_of, structure_of
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    ChatMessage,
    GenerateRequest,
    Role,
    TemplateOptions,
    ToolCall,
    ToolUse,
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def messages_of(messages: Sequence[ChatMessageBody]) -> list[ChatMessage]:
    """The messages of a body as wire messages."""
    return [_message(message) for message in messages]


def _message(message: ChatMessageBody) -> ChatMessage:
    thoughts = message.reasoning if message.reasoning is not None else message.reasoning_content
    return ChatMessage(
        role=_ROLES[message.role],
        content=message.content if message.content is not None else message.refusal or "",
        name=message.name or "",
        tool_calls=[_call(call) for call in message.tool_calls or []],
        tool_call_id=message.tool_call_id or "",
        reasoning=(thoughts or "") if message.role == "assistant" else "",
    )


def _call(call: ToolCallBody) -> ToolCall:
    if call.type == "custom":
        assert call.custom is not None
        return ToolCall(call_id=call.id, name=call.custom.name, arguments=arguments_of(call.custom.input))
    assert call.function is not None
    return ToolCall(call_id=call.id, name=call.function.name, arguments=call.function.arguments)


def check_results(messages: Sequence[ChatMessage], *, whole: bool) -> None:
    """Checks that each result of a tool belongs to a call before it.

    Args:
        messages: The messages of a request.
        whole: They are the whole conversation; else the calls may be in the session's history.

    Raises:
        InvalidRequest: A result without its call; names the field.
    """
    calls: set[str] = set()
    for index, message in enumerate(messages):
        calls.update(call.call_id for call in message.tool_calls)
        if message.role != "tool" or not (whole or message.tool_call_id in calls):
            continue
        if message.tool_call_id and message.tool_call_id not in calls:
            raise _wrong(
                f"messages[{index}].tool_call_id",
                f"is {message.tool_call_id[:64]!r}, and no `tool_calls` before it have that id",
            )


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)


class ContinuableBody(Protocol):
    """A body with messages, the last of which may be continued."""

    continue_final_message: bool | None
    add_generation_prompt: bool | None


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
        delivery=delivery_of(body),
        tools=tool_use_of(body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False),
        structured=structure_of(body),
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
    request = _chat_without_prompt(body, origin)
    tools = request.tools or ToolUse(tools=[], choice="none")
    return msgspec.structs.replace(request, prompt_token_ids=pack_tokens(prompt), tools=tools)


def _template_of(body: ChatCompletionRequest) -> TemplateOptions | None:
    if body.reasoning_effort is None and not body.chat_template_kwargs:
        return None
    variables = body.chat_template_kwargs
    return TemplateOptions(
        reasoning_effort=body.reasoning_effort or "",
        variables=msgspec.json.encode(variables).decode() if variables else "",
    )
