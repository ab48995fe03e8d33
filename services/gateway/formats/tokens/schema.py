"""The bodies of `/tokenize` and `/detokenize`, as vLLM's clients send them.

Checks names, types and ranges; which fields go together is decided in `tokens/formats.py`.
"""

from typing import Annotated, Any

from pydantic import Field

from services.gateway.formats.chat.schema import Messages
from services.gateway.formats.fields.body_types import RequestBody
from services.gateway.formats.fields.field_types import NAME, Tools

MAX_IDS = 262_144  # of one call; as many fill a message of the bus
TokenId = Annotated[int, Field(ge=0, le=2**32 - 1)]


class _TokenBody(RequestBody):
    model: Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]


class TokenizeRequest(_TokenBody):
    """The body of `POST /tokenize`: a prompt or messages. A field that is null counts as absent."""

    prompt: str | None = None
    messages: Annotated[Messages, Field(min_length=1)] | None = None
    tools: Tools = None
    add_special_tokens: Annotated[
        bool | None,
        Field(description="The tokenizer's own tokens around a prompt (if absent: true); not for messages."),
    ] = None
    add_generation_prompt: Annotated[
        bool | None, Field(description="The beginning of the assistant's next message; if absent: true.")
    ] = None
    continue_final_message: Annotated[
        bool | None,
        Field(description="The last message, the assistant's, is left open; if absent: false."),
    ] = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(_TokenBody):
    """The body of `POST /detokenize`."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_IDS)]
