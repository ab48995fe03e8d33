"""The bodies of Anthropic's Messages API, as its clients send them.

Checks names, types and ranges of fields. `conversation.py` and `tools.py` read what is in messages and tools;
unknown fields stay in `model_extra`, so that they can be counted.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from services.gateway.formats.chat.schema import MAX_MESSAGES
from services.gateway.formats.fields.body_types import LenientBody, RequestBody
from services.gateway.formats.fields.field_types import NAME
from services.gateway.formats.fields.inner_fields import ACCEPTED
from shared.messages.conversation import MAX_TOOLS
from shared.messages.generate import MAX_STOPS

_I32_MAX = 2**31 - 1
MIN_THINKING = 1024  # tokens; Anthropic's lower limit of a budget
# checked in `anthropic/conversation.py`, which names the block at fault
_STRING = {"type": "string"}
_TEXT_FIELDS: dict[str, Any] = {"type": _STRING, "text": _STRING}
_TEXT_BLOCK: dict[str, Any] = {
    "type": "object",
    "properties": _TEXT_FIELDS,
    "required": ["type"],
    ACCEPTED: ["cache_control", "citations"],
}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_BLOCK}]}
_RESULT_FIELDS = _TEXT_FIELDS | {"tool_name": {"type": "string", "description": "Of `tool_reference`."}}
_RESULT = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_BLOCK | {"properties": _RESULT_FIELDS}}]
}
_BLOCK = _TEXT_BLOCK | {
    "properties": _TEXT_FIELDS
    | {
        "thinking": _STRING,
        "signature": _STRING,
        "data": {"type": "string", "description": "Of `redacted_thinking`."},
        "id": _STRING,
        "name": _STRING,
        "input": {"type": "object"},
        "tool_use_id": _STRING,
        "content": _RESULT,
        "is_error": {"type": "boolean"},
    },
    ACCEPTED: ["cache_control", "caller", "citations"],
}
_TOOL = {
    "type": "object",
    "properties": {
        "name": _STRING,
        "description": _STRING,
        "input_schema": {"type": "object", "description": "A JSON Schema."},
        "strict": {"type": "boolean"},
        "type": {"const": "custom"},
    },
    "required": ["name", "input_schema"],
    ACCEPTED: [
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "eager_input_streaming",
        "input_examples",
    ],
}
Texts = Annotated[Any, WithJsonSchema(_TEXTS)]
Content = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _BLOCK}]})]
ToolBody = Annotated[dict[str, Any], WithJsonSchema(_TOOL)]
StopSequence = Annotated[str, Field(min_length=1, max_length=256)]


class MessageBody(LenientBody):
    """One message: a text, or content blocks."""

    role: Literal["user", "assistant", "system"]
    content: Content


class ThinkingBody(LenientBody):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING, le=_I32_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class ToolChoiceBody(LenientBody):
    """Whether the model calls tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormatBody(LenientBody):
    """The form that the answer's text must have."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfigBody(LenientBody):
    """How much the model thinks, and the form of its answer."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    format: OutputFormatBody | None = None


class MetadataBody(LenientBody):
    """What the caller notes about the request; `user_id` counts with `RYZ_SESSION_FROM=user`."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class ConversationBody(RequestBody):
    """The fields that decide what the model reads. A field that is null counts as absent."""

    model: Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]
    messages: Annotated[list[MessageBody], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Texts = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfigBody | None = None
    output_format: OutputFormatBody | None = None


class CountTokensRequest(ConversationBody):
    """The body of `POST /v1/messages/count_tokens`."""


class MessagesRequest(ConversationBody):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1, le=_I32_MAX)]
    stop_sequences: Annotated[list[StopSequence], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=_I32_MAX)] | None = None
    metadata: MetadataBody | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63, description="Not of Anthropic. Absent: random.")] | None = None
    session_id: str | None = None
    priority: (
        Annotated[int, Field(ge=-(2**63), lt=2**63, description="Not of Anthropic. The lower, the earlier.")]
        | None
    ) = None
    timeout: Annotated[float, Field(gt=0, description="Seconds; not of Anthropic.")] | None = None
