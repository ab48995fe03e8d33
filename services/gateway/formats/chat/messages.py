"""Turns the messages of a body into wire messages. Pure."""

from collections.abc import Sequence

from services.gateway.formats.chat.message_schema import ChatMessageBody, ToolCallBody
from services.gateway.formats.fields.custom_tools import arguments_of
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, Role, ToolCall

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
