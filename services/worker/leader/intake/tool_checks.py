"""Checks the tools and the template's variables of a request, and the tool results of its conversation."""

import json
import re
from collections.abc import Sequence
from typing import Any

from services.worker.text.answers.known_formats import BY_NAME
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.tool_prompt import NOTHING, TemplateInput, parameters_of
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest, ToolDefinition, ToolUse

MAX_TOOL_CHARS = 262_144  # of all definitions of a request
MAX_VARIABLES = 64
MAX_VARIABLE_CHARS = 65_536
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


def offered_tools(request: GenerateRequest) -> Sequence[ToolDefinition]:
    """Returns the tools that the model gets to see."""
    return request.tools.tools if request.tools is not None and request.tools.choice != "none" else ()


def has_parts(request: GenerateRequest) -> bool:
    """Returns whether the answer may have reasoning and calls: that to messages, or to tokens with tools.

    Tokens may be those of a conversation, whose tools the answer may then call.
    """
    tokens = request.prompt_token_ids is not None and request.tools is not None
    return request.messages is not None or tokens


def requires_call(request: GenerateRequest) -> bool:
    """Returns whether the answer must call a tool."""
    return request.tools is not None and request.tools.choice in ("required", "named")


def check_tools(request: GenerateRequest, template: ChatTemplate | None) -> None:
    """Checks the tools of a request.

    Raises:
        InvalidRequest: They contradict each other or the request; `data` has the number of a tool at fault.
    """
    use = request.tools
    if use is None:
        return
    if not has_parts(request):
        raise InvalidRequest("`tools` need messages: a prompt is completed as it is", param="tools")
    names = [tool.name for tool in use.tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _refusal(f"tool {index} has the name {name!r} of an earlier one; names are unique", index)
    if use.choice == "named" and use.name not in names:
        raise InvalidRequest(
            f"the answer must call {use.name!r}, which is none of the request's tools", param="tools"
        )
    if use.choice == "required" and not names:
        raise InvalidRequest("the answer must call a tool, and the request has none", param="tools")
    if sum(len(tool.description) + len(tool.parameters) for tool in use.tools) > MAX_TOOL_CHARS:
        raise InvalidRequest(
            f"the tools have more than {MAX_TOOL_CHARS} characters; shorten their descriptions or schemas",
            param="tools",
        )
    for index, tool in enumerate(use.tools):
        _check_parameters(tool, index)
    _check_format(use, template)


def check_tool_results(messages: Sequence[ChatMessage]) -> None:
    """Checks that each tool result belongs to a call.

    Raises:
        InvalidRequest: One does not; the text names its index in the conversation.
    """
    known: set[str] = set()
    for index, message in enumerate(messages):
        known.update(call.call_id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in known:
            raise InvalidRequest(
                f"messages.{index}: a message with role 'tool' must answer a call of an assistant's message "
                f"before it, and there is no call with the id {message.tool_call_id!r}",
                param="messages",
                index=index,
            )


def template_input(request: GenerateRequest, template: ChatTemplate) -> TemplateInput:
    """Returns what the template gets beside the messages.

    Raises:
        InvalidRequest: The variables are no small JSON object, or one has a name of the template's own.
    """
    tools, options = offered_tools(request), request.template
    if options is None:
        return TemplateInput(tools) if tools else NOTHING
    variables = _variables(options.variables)
    for name in variables:
        if not _VARIABLE.fullmatch(name) or name in template.reserved:
            raise InvalidRequest(
                f"the template's variable {name!r} cannot be set by a request",
                param="template",
                variable=name,
            )
    if options.reasoning_effort:
        variables.setdefault("reasoning_effort", options.reasoning_effort)
    if options.reasoning_effort == "none":
        variables.setdefault("enable_thinking", False)
        variables.setdefault("thinking", False)
    return TemplateInput(tools, variables)


def _variables(text: str) -> dict[str, Any]:
    if len(text) > MAX_VARIABLE_CHARS:
        raise InvalidRequest(
            f"the template's variables have more than {MAX_VARIABLE_CHARS} characters", param="template"
        )
    try:
        variables = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the template's variables are no JSON: {error}", param="template") from error
    if not isinstance(variables, dict) or len(variables) > MAX_VARIABLES:
        raise InvalidRequest(
            f"the template's variables must be a JSON object of at most {MAX_VARIABLES} fields",
            param="template",
        )
    return variables


def _check_parameters(tool: ToolDefinition, index: int) -> None:
    try:
        schema = parameters_of(tool)
    except ValueError as error:
        raise _refusal(f"the parameters of tool {tool.name!r} are no JSON Schema: {error}", index) from error
    kind, properties = schema.get("type", "object"), schema.get("properties", {})
    if kind != "object" or not isinstance(properties, dict):
        raise _refusal(
            f"the parameters of tool {tool.name!r} must be a JSON Schema of type object, got type {kind!r}",
            index,
        )
    for name, value in properties.items():
        types = value.get("type", []) if isinstance(value, dict) else []
        unknown = not set(map(str, types if isinstance(types, list) else [types])) <= _TYPES
        if not isinstance(value, dict | bool) or unknown:
            raise _refusal(f"the parameters of tool {tool.name!r}: {name!r} has no JSON Schema", index)


def _check_format(use: ToolUse, template: ChatTemplate | None) -> None:
    if use.format and use.format not in BY_NAME:
        raise InvalidRequest(
            f"there is no tool format {use.format!r}; there are {', '.join(sorted(BY_NAME))}", param="tools"
        )
    if use.format not in ("", "hermes") and template is not None and not template.knows_tools:
        raise InvalidRequest(
            f"the model's template knows no tools, so only the format 'hermes' can be asked of it, not "
            f"{use.format!r}",
            param="tools",
        )


def _refusal(message: str, index: int) -> InvalidRequest:
    return InvalidRequest(message, param="tools", index=index)
