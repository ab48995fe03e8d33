"""Keeps special tokens that somebody spells out in a message from becoming special.

A user who writes `<|assistant|>` means these characters; the template alone says where a turn begins. The
text that the model sees is the same, its tokens are the ordinary ones.
"""

import re
import secrets
from collections.abc import Iterable

import msgspec

from services.worker.adapters.chat_template import ChatTemplate
from services.worker.adapters.tokenizer import Tokenizer
from shared.messages import ChatMessage


class SpelledTokens:
    """Cuts such words after their first character, so that the tokenizer never sees them whole.

    The assistant's messages stay as they are: templates look for tokens such as `</think>` in them. A special
    token of one character cannot be cut, and counts as special wherever it stands.
    """

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted(text for text in special_texts if len(text) > 1)
        self._first_chars = sorted({text[0] for text in texts})
        self._begins = re.compile(f"(?={'|'.join(map(re.escape, texts))}).", re.DOTALL)
        self._cut = f"\ue000{secrets.token_hex(8)}\ue000"  # nobody can guess it, so no message holds it

    def encode(self, messages: list[ChatMessage], template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
        """The prompt of a conversation as tokens; raises what the template raises."""
        text = template.render([self._mark(message) for message in messages])
        if self._cut not in text:
            return tokenizer.encode(text, add_special_tokens=False)
        pieces = text.split(self._cut)
        return [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]

    def _mark(self, message: ChatMessage) -> ChatMessage:
        if message.role == "assistant":
            return message
        content, name = self._marked(message.content), self._marked(message.name)
        if content is message.content and name is message.name:
            return message
        return msgspec.structs.replace(message, content=content, name=name)

    def _marked(self, text: str) -> str:
        if not any(char in text for char in self._first_chars):
            return text
        return self._begins.sub(lambda found: found[0] + self._cut, text)
