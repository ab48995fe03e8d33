"""The body of `POST /v1/responses`, as OpenAI's clients send it.

Checks names, types and ranges of the fields. `responses/translation.py` decides what they mean; the items of
the input are read in `input_items.py`, and tools in `responses/tools.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from services.gateway.formats.fields.body_types import FewFields, LenientBody, RequestBody
from services.gateway.formats.fields.field_types import NAME
from services.gateway.formats.fields.inner_fields import ACCEPTED
from shared.messages.conversation import MAX_TOOLS
from shared.messages.generate import MAX_LOGPROBS

MAX_ITEMS = 4096
_I32_MAX = 2**31 - 1
_I64 = 2**63
_STRING = {"type": "string"}
_PART = {
    "type": "object",
    "properties": {"type": _STRING, "text": _STRING, "refusal": _STRING},
    "required": ["type"],
    ACCEPTED: ["annotations", "logprobs", "prompt_cache_breakpoint"],
}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
_ITEM = {
    "type": "object",
    "properties": {
        "type": _STRING,
        "role": _STRING,
        "content": _TEXTS,
        "call_id": _STRING,
        "name": _STRING,
        "arguments": _STRING,
        "input": _STRING,
        "output": _TEXTS,
        "summary": {"type": "array", "items": _PART},
    },
    ACCEPTED: ["created_by", "encrypted_content", "id", "namespace", "phase", "status"],
}
_ITEMS = {"type": "array", "items": _ITEM, "maxItems": MAX_ITEMS}
_TOOL = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function", "custom"]},
        "name": _STRING,
        "format": {"type": "object", "properties": {"type": {"const": "text"}}},
        "description": {"anyOf": [_STRING, {"type": "null"}]},
        "parameters": {"anyOf": [{"type": "object", "description": "A JSON Schema."}, {"type": "null"}]},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["type", "name"],
    ACCEPTED: ["defer_loading"],
}


def _input_of(given: Any) -> str | list[dict[str, Any]]:
    """A text, or a list of items; the items are checked later."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise PydanticCustomError("wrong", "must be a string or a list of items", {"at": ""})
    if not 1 <= len(given) <= MAX_ITEMS:
        raise PydanticCustomError("wrong", f"must have 1 to {MAX_ITEMS} items, got {len(given)}", {"at": ""})
    return given


Input = Annotated[
    str | list[dict[str, Any]],
    PlainValidator(_input_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, _ITEMS]}),
]
ToolBody = Annotated[dict[str, Any], WithJsonSchema(_TOOL)]
ShortText = Annotated[str, Field(max_length=512)]


class TextOptions(LenientBody):
    """The form of the answer's text."""

    format: FewFields[dict[str, Any] | None] = None
    verbosity: str | None = None


class ReasoningOptions(LenientBody):
    """How the model thinks; summaries are not made, the reasoning itself is in the answer."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    summary: ShortText | None = None


class ResponseStreamOptions(LenientBody):
    """Options of a streamed response; obfuscation is accepted and never added."""

    include_obfuscation: bool | None = None


class ResponseRequest(RequestBody):
    """A request for a response. A field that is null counts as absent."""

    model: Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]
    input: Input
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=96)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=_I32_MAX)] | None = None
    text: FewFields[TextOptions | None] = None
    reasoning: FewFields[ReasoningOptions | None] = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=_I32_MAX)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[dict[str, ShortText], Field(max_length=16)] | None = None
    user: ShortText | None = None
    service_tier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None
    safety_identifier: ShortText | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: FewFields[ResponseStreamOptions | None] = None
    seed: Annotated[int, Field(ge=-_I64, lt=_I64, description="Absent: drawn at random.")] | None = None
    priority: Annotated[int, Field(ge=-_I64, lt=_I64, description="The lower, the earlier.")] | None = None
    timeout: Annotated[float, Field(gt=0, description="Seconds.")] | None = None
