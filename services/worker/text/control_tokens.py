"""Keeps the text of control tokens in messages ordinary text.

`<|assistant|>` in a message of a user or in an earlier answer means these characters; only the template
decides where a turn begins. The model sees the same text as ordinary tokens.
"""

import re
import secrets

import msgspec

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.text_patterns import any_text, beginnings
from services.worker.text.tokenizer import Tokenizer
from shared.messages import ChatMessage


class ControlTokenGuard:
    """Cuts the text of control tokens after its first character, so that it is never read as one of them.

    The text between two control tokens of the template is tokenized as a whole, by a tokenizer that does not
    know them if it was cut.

    Control tokens are the special tokens, and the added tokens that the template names (`<think>`). Some
    templates search the assistant's messages for a control token, such as `</think>` to leave out the
    reasoning before it. Those stay whole until the template has run; then those that the template did not
    write itself are cut. Special tokens of one character and added tokens of white space cannot be cut, and
    stay control tokens everywhere.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        named = {text for text in tokenizer.added_texts if text in template.source and not text.isspace()}
        texts = {text for text in tokenizer.special_texts | named if len(text) > 1}
        nonce = secrets.token_hex(8)  # random, so that no message can hold the marks
        self._cut, self._before, self._after = (f"\ue000{mark}{nonce}\ue000" for mark in "cba")
        self._tokenizer, self._plain = tokenizer, tokenizer.without(texts)
        self._control = any_text(texts)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        self._control_ids = {token for each in ids if len(each) == 1 for token in each}
        self._template = template
        self._marking, self._searched = template.with_marks(texts, self._before, self._after)
        self._first_char = _any_of({text[0] for text in texts})
        self._all = beginnings(texts)
        self._not_searched = beginnings(texts - self._searched)
        self._left = beginnings(self._searched)
        self._written = re.compile(f"{self._before}(.*?){self._after}", re.DOTALL)

    def render_prompt(
        self, messages: list[ChatMessage], limit_s: float, *, generation_prompt: bool = True
    ) -> list[str]:
        """Render the prompt of a conversation.

        Args:
            messages: The conversation.
            limit_s: Time limit of the template.
            generation_prompt: End it with the beginning of the assistant's next message.

        Returns:
            Pieces to be tokenized separately; mostly one.

        Raises:
            InvalidRequest: As in `ChatTemplate.render`.
            TemplateOverran: As in `ChatTemplate.render`.
        """
        marked = [self._mark(message) for message in messages]
        text = self._template.render(marked, limit_s, generation_prompt=generation_prompt)
        if any(token in m.content for m in marked if m.role == "assistant" for token in self._searched):
            again = self._marking.render(marked, limit_s, generation_prompt=generation_prompt)
            text = self._cut_unwritten(text, again)
        return text.split(self._cut)

    def encode_prompt(self, pieces: list[str]) -> list[int]:
        """Tokenize the pieces of a prompt."""
        spans = self._spans(pieces) if len(pieces) > 1 else [pieces]
        return [token for span in spans for token in self._encode_span(span)]

    def _spans(self, pieces: list[str]) -> list[list[str]]:
        """Return the prompt as texts that are tokenized separately; one with a cut has several parts."""
        spans, text, span = [], "", list[str]()
        for piece in pieces:
            found = list(self._control.finditer(piece))
            if not found:
                span.append(piece)
                continue
            begin, end = found[0].start(), found[-1].end()
            span.append(piece[:begin])
            if len(span) == 1:
                text += piece[:end]
            else:
                spans += [[text], span] if text else [span]
                text = piece[begin:end]
            span = [piece[end:]]
        if len(span) > 1:
            return [*spans, [text], span] if text else [*spans, span]
        return [*spans, [text + span[0]]]

    def _encode_span(self, parts: list[str]) -> list[int]:
        if len(parts) > 1:
            ids = self._plain.encode("".join(parts), add_special_tokens=False)
            if self._control_ids.isdisjoint(ids):
                return ids
        # such a tokenizer is not to be had; or it makes a control token from text, as if it were a word
        return [token for part in parts for token in self._tokenizer.encode(part, add_special_tokens=False)]

    def _cut_unwritten(self, text: str, marked: str) -> str:
        """Cut the searched tokens that the template did not write.

        Args:
            text: The prompt.
            marked: The prompt with marks. If the marks changed more than that, the prompt stays as it is.
        """
        if self._written.sub(r"\1", marked) != text:
            return text
        parts = self._written.split(marked)  # alternately text and tokens of the template
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
