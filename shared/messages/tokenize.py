"""Questions about the tokens of a text, which any leader of the model answers.

A leader makes the tokens in the same way as those of a `GenerateRequest`, so the counts are equal.
"""

from typing import Annotated

import msgspec

from shared.messages.base import DEFAULT_TENANT, ModelName, Tenant, TokenIds, Wire
from shared.messages.conversation import ChatMessage, TemplateOptions, ToolUse

MAX_CONVERSATION = 4096


class TokenizeQuery(Wire, frozen=True, kw_only=True):
    """Asks for the tokens of a prompt. Exactly one of `messages` and `prompt` is given.

    Attributes:
        tools: Functions that the chat template shows to the model; only with `messages`.
        template: Variables for the chat template.
        special_tokens: Puts the tokenizer's own tokens around a `prompt`, as a generation does. In messages
            the chat template alone writes them.
        generation_prompt: Ends the conversation with the beginning of the assistant's next message.
        continues: The last message is the assistant's, and is left open (`GenerateRequest.continues`).
        ids: The answer has the token ids. False: only their count.
        texts: The answer has the text of each token.
    """

    model: ModelName
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=MAX_CONVERSATION)] | None = (
        None
    )
    prompt: str | None = None
    tools: ToolUse | None = None
    template: TemplateOptions | None = None
    special_tokens: bool = True
    generation_prompt: bool = True
    continues: bool = False
    ids: bool = True
    texts: bool = False
    tenant: Tenant = DEFAULT_TENANT


class Tokenized(Wire, frozen=True, kw_only=True):
    """Answer to `TokenizeQuery`.

    Attributes:
        count: Number of the prompt's tokens.
        context_length: Tokens that the model's context holds.
        texts: The text of each token, if it was asked for.
        parts: By their indices, the bytes of those tokens that are no whole characters.
    """

    count: Annotated[int, msgspec.Meta(ge=0)]
    context_length: Annotated[int, msgspec.Meta(ge=0)]
    token_ids: TokenIds = b""
    texts: list[str] = []
    parts: dict[int, bytes] = {}


class DetokenizeQuery(Wire, frozen=True, kw_only=True):
    """Asks for the text of tokens, that of special tokens included."""

    model: ModelName
    token_ids: TokenIds
    tenant: Tenant = DEFAULT_TENANT


class Detokenized(Wire, frozen=True, kw_only=True):
    """Answer to `DetokenizeQuery`. Bytes that are no character are U+FFFD in the text."""

    text: str
