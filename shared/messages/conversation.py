"""Messages of a conversation, and the tools that a model may call in it."""

from typing import Annotated, Literal

import msgspec

from shared.messages.base import Wire

Role = Literal["system", "developer", "user", "assistant", "tool"]
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128  # of one message
JsonText = Annotated[str, msgspec.Meta(description="JSON as text.")]
FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}\Z")]


class ToolCall(Wire, frozen=True, kw_only=True):
    """A call of a function that the model has made.

    Attributes:
        call_id: Names the call; the message with its result has the same `tool_call_id`.
        arguments: As the model wrote them: JSON text, cut off if the answer ended in the middle.
    """

    call_id: Annotated[str, msgspec.Meta(max_length=256)]
    name: Annotated[str, msgspec.Meta(max_length=128)]
    arguments: str = ""


class ChatMessage(Wire, frozen=True, kw_only=True):
    """One message of a conversation; content is plain text.

    Attributes:
        role: `developer` is another word for `system`.
        tool_calls: Calls that an assistant's message has made.
        tool_call_id: Of a `tool` message: the call whose result it is.
        reasoning: What the assistant thought before its answer; templates may show or drop it.
    """

    role: Role
    content: str
    name: str = ""
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=MAX_TOOL_CALLS)] = []
    tool_call_id: Annotated[str, msgspec.Meta(max_length=256)] = ""
    reasoning: str = ""


class ToolDefinition(Wire, frozen=True, kw_only=True):
    """A function that the model may call.

    Attributes:
        parameters: JSON Schema of the arguments, as JSON text. Empty: an object without fields.
        strict: The arguments of each call must match the schema; a grammar enforces it.
        custom: A custom tool: its one argument is the text `input`, and a gateway's caller gets that text.
    """

    name: FunctionName
    description: str = ""
    parameters: JsonText = ""
    strict: bool = False
    custom: bool = False


class ToolUse(Wire, frozen=True, kw_only=True):
    """The tools of a request, and whether the model calls them.

    Attributes:
        choice: `auto` lets the model decide, `none` forbids calls, `required` asks for at least one, `named`
            for one of the function `name`.
        parallel: The answer may have more than one call.
        format: Name of the form in which the model writes calls. Empty: that of its chat template.
    """

    tools: Annotated[list[ToolDefinition], msgspec.Meta(max_length=MAX_TOOLS)]
    choice: Literal["auto", "none", "required", "named"] = "auto"
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    parallel: bool = True
    format: Annotated[str, msgspec.Meta(max_length=64)] = ""


class TemplateOptions(Wire, frozen=True, kw_only=True):
    """Variables for the model's chat template.

    Attributes:
        reasoning_effort: How long the model is to think, in words of the template: `low`, `medium`, `high`.
        variables: More variables, a JSON object as text, for example `{"enable_thinking": false}`.
    """

    reasoning_effort: Annotated[str, msgspec.Meta(max_length=64)] = ""
    variables: JsonText = ""
