"""The body of a chat completion, as OpenAI's clients send it."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from services.gateway.formats.chat.message_schema import Messages
from services.gateway.formats.fields.body_types import wrong
from services.gateway.formats.fields.field_types import (
    PromptIds,
    ToolChoice,
    Tools,
)
from services.gateway.formats.fields.sampling_body import I32_MAX, SamplingBody
from shared.messages.generate import MAX_LOGPROBS

_OF_MESSAGES = ("messages", "continue_final_message", "chat_template_kwargs", "reasoning_effort")


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
