"""The body of a chat completion, as OpenAI's clients send it."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from services.gateway.formats.fields.body_types import FewFields, LenientBody, wrong
from services.gateway.formats.fields.field_types import (
    PromptIds,
    ToolChoice,
    Tools,
)
from services.gateway.formats.fields.inner_fields import ACCEPTED
from services.gateway.formats.fields.sampling_body import I32_MAX, SamplingBody
from shared.messages.conversation import MAX_TOOL_CALLS
from shared.messages.generate import MAX_LOGPROBS

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
_OF_MESSAGES = ("messages", "continue_final_message", "chat_template_kwargs", "reasoning_effort")


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
    ACCEPTED: ["annotations", "cache_control"],
}
_REFUSAL_PART = {
    "type": "object",
    "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
    "required": ["type", "refusal"],
}
_TEXT_PARTS = {"type": "array", "items": {"anyOf": [_TEXT_PART, _REFUSAL_PART]}, "maxItems": MAX_PARTS}
Content = Annotated[
    str | None,
    PlainValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_PARTS, {"type": "null"}]}),
]


class CalledFunction(LenientBody):
    """The function of a call, and its arguments as JSON text."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """The function's name."""
    arguments: str
    """Its arguments, as JSON text."""


class CalledCustomTool(LenientBody):
    """The custom tool of a call, and the text that it got."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """The tool's name."""
    input: str
    """Its input."""


class ToolCallBody(LenientBody):
    """A call that an assistant's message has made."""

    model_config = ConfigDict(json_schema_extra={ACCEPTED: ["index"]})  # of the stream that brought it

    id: Annotated[str, Field(min_length=1, max_length=256)]
    """By which the result names the call."""
    type: Literal["function", "custom"] = "function"
    """The kind of call. Absent: `function`."""
    function: FewFields[CalledFunction | None] = None
    """The function that was called. Absent: the call is `custom`."""
    custom: FewFields[CalledCustomTool | None] = None
    """The custom tool that was called. Absent: the call is one of a function."""

    @model_validator(mode="after")
    def _check_called(self) -> Self:
        if getattr(self, self.type) is None:
            raise wrong("is required", f".{self.type}")
        return self


ToolCalls = Annotated[list[FewFields[ToolCallBody]], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)]


class ChatMessageBody(LenientBody):
    """One message of the conversation; `developer` is another word for `system`."""

    # of an answer that is sent back; `fields/rules.py` refuses values that would matter
    model_config = ConfigDict(json_schema_extra={ACCEPTED: ["annotations", "audio", "function_call"]})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Whose message it is."""
    content: Content = None
    """A text, or text parts, which are joined. Absent: only beside an assistant's calls, `refusal` or
    reasoning."""
    name: Annotated[str, Field(max_length=256)] | None = None
    """Given to the chat template. Absent: none."""
    tool_calls: ToolCalls | None = None
    """Calls that the assistant made. Absent: none."""
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    """The call whose result a tool's message has. Absent: the template gets none."""
    refusal: str | None = None
    """The assistant's text where there is no `content`. Absent: none."""
    reasoning: str | None = None
    """What the assistant thought; given to the chat template. Absent: none."""
    reasoning_content: str | None = None
    """Another word for `reasoning`. Absent: none."""
    prefix: bool | None = None
    """Of the last message: it is continued, as with `continue_final_message`. Absent: false."""

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role != "assistant":
            for field in ("tool_calls", "refusal", "prefix"):
                if getattr(self, field):
                    raise wrong(f"is for assistant messages, not those of {self.role!r}", f".{field}")
        if self.tool_call_id and self.role != "tool":
            raise wrong(f"is for tool messages, not those of {self.role!r}", ".tool_call_id")
        thoughts = self.role == "assistant" and (self.reasoning or self.reasoning_content)
        if self.content is None and not self.tool_calls and self.refusal is None and not thoughts:
            raise wrong("is required", ".content")
        return self


# only the first wrong message is reported
Messages = Annotated[list[FewFields[ChatMessageBody]], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class ChatCompletionRequest(SamplingBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[Messages, Field(min_length=1)] | None = None
    """The conversation, or what comes after a session's history; see below. Absent: only beside
    `prompt_token_ids`."""
    prompt_token_ids: PromptIds | None = None
    """The prompt as token ids, in place of `messages`; no turn of a session. Absent: the messages are it."""
    continue_final_message: bool | None = None
    """The answer goes on from the end of the last message, the assistant's ([continuing.md](continuing.md)).
    Absent: false."""
    add_generation_prompt: bool | None = None
    """The prompt ends with the beginning of the assistant's message. Absent: true, unless the last message
    is continued."""
    tools: Tools = None
    """Functions that the model may call; see [tools.md](tools.md). Absent: none."""
    tool_choice: ToolChoice = None
    """`auto`, `none`, `required`, one function, or `allowed_tools`. Absent: `auto` if there are tools."""
    parallel_tool_calls: bool | None = None
    """The answer may have more than one call. Absent: true."""
    reasoning_effort: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """A variable of the model's chat template. Absent: the template's own choice."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the model's chat template. Absent: none."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=I32_MAX)] | None = None
    """The newer name of `max_tokens`, which it goes before. Absent: `max_tokens`."""
    logprobs: bool | None = None
    """The answer has the log probabilities of its tokens. Absent: false."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Likeliest tokens at each place that come with them; needs `logprobs`. Absent: 0."""

    @model_validator(mode="before")
    @classmethod
    def _check_prompt_alone(cls, given: Any) -> Any:
        """Refuses what is for messages beside `prompt_token_ids`, before any other fault is named."""
        if isinstance(given, dict) and given.get("prompt_token_ids") is not None:
            for name in _OF_MESSAGES:
                if given.get(name):
                    raise wrong(
                        "is for messages, and `prompt_token_ids` is the whole prompt: leave one out", name
                    )
        return given
