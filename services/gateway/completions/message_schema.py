"""The messages of a chat completion, as OpenAI's clients send them: names and types of their fields."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from services.gateway.completions.body_types import FewFields, LenientBody, wrong
from shared.messages.conversation import MAX_TOOL_CALLS

MAX_MESSAGES = 4096
MAX_PARTS = 4096  # of one message
_NO_INPUT = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "videos",
    "file": "files",
}


def _text_of(content: Any) -> str | None:
    """The text of a message's content: a string, or a list of text parts, which are joined."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong("must be a string or a list of text parts")
    if len(content) > MAX_PARTS:
        raise wrong(f"must have at most {MAX_PARTS} text parts, got {len(content)}: join them")
    return "".join([_part_text(part, index) for index, part in enumerate(content)])


def _part_text(part: Any, index: int) -> str:
    if not isinstance(part, dict):
        raise wrong("must be an object with `type` and `text`", f"[{index}]")
    kind = part.get("type")
    field = "refusal" if kind == "refusal" else "text"
    if kind not in ("text", "refusal"):
        got = kind[:64] if isinstance(kind, str) else type(kind).__name__
        lacking = _NO_INPUT.get(got)
        why = f": the model takes no {lacking}" if lacking else ""
        raise wrong(f"only parts of type 'text' are supported, got {got!r}{why}", f"[{index}].type")
    text = part.get(field)
    if not isinstance(text, str):
        raise wrong("must be a string", f"[{index}].{field}")
    return text


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_TEXT_PARTS = {"type": "array", "items": _TEXT_PART, "maxItems": MAX_PARTS}
Content = Annotated[
    str | None,
    PlainValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_PARTS, {"type": "null"}]}),
]


class CalledFunction(LenientBody):
    """The function of a call, and its arguments as JSON text."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: str


class ToolCallBody(LenientBody):
    """A call that an assistant's message has made."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: FewFields[CalledFunction]


ToolCalls = Annotated[list[FewFields[ToolCallBody]], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)]


class ChatMessageBody(LenientBody):
    """One message of the conversation; `developer` is another word for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Content, Field(description="May be null beside `tool_calls` or `refusal` of the assistant.")
    ] = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: ToolCalls | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: Annotated[str, Field(description="Another word for `reasoning`.")] | None = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role != "assistant":
            for field in ("tool_calls", "refusal"):
                if getattr(self, field):
                    raise wrong(f"is for assistant messages, not those of {self.role!r}", f".{field}")
        if self.tool_call_id and self.role != "tool":
            raise wrong(f"is for tool messages, not those of {self.role!r}", ".tool_call_id")
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise wrong("is required", ".content")
        return self


# only the first wrong message is reported
Messages = Annotated[list[FewFields[ChatMessageBody]], Field(max_length=MAX_MESSAGES, fail_fast=True)]
