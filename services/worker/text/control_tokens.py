"""Keeps control tokens that are spelled out in a message from becoming control tokens.

A user who writes `<|assistant|>` means these characters, and so does a model that wrote them in an earlier
answer: the template alone says where a turn begins. The text that the model sees is the same, its tokens are
the ordinary ones.
"""

import re
import secrets
from collections.abc import Iterable

import msgspec

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.tokenizer import Tokenizer
from shared.messages import ChatMessage


class ControlTokenGuard:
    """Cuts such words after their first character, so that the tokenizer never sees them whole.

    Control tokens are the special tokens, and those added tokens that the template names (`<think>`). Some
    templates look for a control token in the assistant's messages, such as `</think>` to leave out the
    reasoning before it. Those few stay whole until the template has run; what is left of them then, and was
    not written by the template, is cut. A special token of one character cannot be cut, and counts as special
    wherever it stands; so do added tokens of white space, which many vocabularies have.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        named = {text for text in tokenizer.added_texts if text in template.source and not text.isspace()}
        texts = {text for text in tokenizer.special_texts | named if len(text) > 1}
        nonce = secrets.token_hex(8)  # cannot be guessed, so that no message holds the marks
        self._cut, self._before, self._after = (f"\ue000{mark}{nonce}\ue000" for mark in "cba")
        self._tokenizer = tokenizer
        self._template = template
        self._marking, self._searched = template.with_marks(texts, self._before, self._after)
        self._first_char = _any_of({text[0] for text in texts})
        self._all = _beginnings(texts)
        self._not_searched = _beginnings(texts - self._searched)
        self._left = _beginnings(self._searched)
        self._written = re.compile(f"{self._before}(.*?){self._after}", re.DOTALL)

    def render_prompt(self, messages: list[ChatMessage], limit_s: float) -> list[str]:
        """The prompt of a conversation, in pieces that are tokenized each for itself; mostly one.

        Raises what `ChatTemplate.render` raises, which gets `limit_s`.
        """
        marked = [self._mark(message) for message in messages]
        text = self._template.render(marked, limit_s)
        if any(token in m.content for m in marked if m.role == "assistant" for token in self._searched):
            text = self._cut_unwritten(text, self._marking.render(marked, limit_s))
        return text.split(self._cut)

    def encode_prompt(self, pieces: list[str]) -> list[int]:
        """The tokens of a prompt."""
        encode = self._tokenizer.encode
        return [token for piece in pieces for token in encode(piece, add_special_tokens=False)]

    def _cut_unwritten(self, text: str, marked: str) -> str:
        """Cuts the searched tokens that the template did not write.

        marked: the same with marks. A template for which the marks make a difference is left as it is.
        """
        if self._written.sub(r"\1", marked) != text:
            return text
        parts = self._written.split(marked)  # between two tokens of the template, and those tokens, in turn
        parts[::2] = [self._left.sub(self._cut_after, part) for part in parts[::2]]
        return "".join(parts)

    def _cut_after(self, found: re.Match[str]) -> str:
        return found[0] + self._cut

    def _mark(self, message: ChatMessage) -> ChatMessage:
        begins = self._not_searched if message.role == "assistant" else self._all
        content, name = self._marked(message.content, begins), self._marked(message.name, self._all)
        if content is message.content and name is message.name:
            return message
        return msgspec.structs.replace(message, content=content, name=name)

    def _marked(self, text: str, begins: re.Pattern[str]) -> str:
        if not text or self._first_char.search(text) is None:
            return text
        return begins.sub(self._cut_after, text)


def _any_of(chars: set[str]) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(''.join(sorted(chars)))}]" if chars else r"(?!)")


def _beginnings(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds the first character of each of these texts, also where they overlap."""
    found = "|".join(map(re.escape, sorted(texts)))
    return re.compile(f"(?={found}).", re.DOTALL) if found else re.compile(r"(?!)")
