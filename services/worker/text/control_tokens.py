"""Keeps the text of control tokens in messages ordinary text.

`<|assistant|>` in a message of a user or in an earlier answer means these characters; only the template
decides where a turn begins. The model sees the same text as ordinary tokens.
"""

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from services.worker.text.answers.call_layout import AnswerPiece
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.patterns import any_text, beginnings
from services.worker.text.tokenizer import Tokenizer
from services.worker.text.tool_prompt import NOTHING, TemplateInput
from shared.messages import ChatMessage, ToolCall, ToolDefinition

_LINE = "\n"


def control_texts(tokenizer: Tokenizer, template_source: str) -> frozenset[str]:
    """Returns the texts of control tokens: special tokens, and added tokens that the template names.

    Args:
        template_source: Its chat template; empty without one.
    """
    named = {text for text in tokenizer.added_texts if text in template_source and not text.isspace()}
    return frozenset(tokenizer.special_texts | named)


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
        texts = {text for text in control_texts(tokenizer, template.sources) if len(text) > 1}
        nonce = secrets.token_hex(8)  # random, so that no message can hold the marks
        self._cut, self._before, self._after = (f"\ue000{mark}{nonce}\ue000" for mark in "cba")
        self._tokenizer, self._plain = tokenizer, tokenizer.without(texts)
        self._control = any_text(texts)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        self.control_ids = frozenset(token for each in ids if len(each) == 1 for token in each)
        self._template = template
        self._marking, self._searched = template.with_marks(texts, self._before, self._after)
        self._first_char = _any_of({text[0] for text in texts})
        self._all = beginnings(texts)
        self._not_searched = beginnings(texts - self._searched)
        self._left = beginnings(self._searched)
        self._written = re.compile(f"{self._before}(.*?){self._after}", re.DOTALL)

    def render_prompt(
        self,
        messages: list[ChatMessage],
        limit_s: float,
        given: TemplateInput = NOTHING,
        *,
        generation_prompt: bool = True,
    ) -> list[str]:
        """Render the prompt of a conversation.

        Args:
            limit_s: Time limit of the template.
            given: Tools and variables of the request; their texts are no control tokens either.
            generation_prompt: End with the beginning of the assistant's message.

        Returns:
            Pieces to be tokenized separately; mostly one.

        Raises:
            InvalidRequest: As in `ChatTemplate.render`.
            TemplateOverran: As in `ChatTemplate.render`.
        """
        marked = [self._mark(message) for message in messages]
        given = TemplateInput(
            [self._mark_tool(tool) for tool in given.tools],
            {name: self._mark_value(value) for name, value in given.variables.items()},
        )
        text = self._template.render(marked, limit_s, given, generation_prompt=generation_prompt)
        if any(token in m.content for m in marked if m.role == "assistant" for token in self._searched):
            shown = self._marking.render(marked, limit_s, given, generation_prompt=generation_prompt)
            text = self._cut_unwritten(text, shown)
        return text.split(self._cut)

    def encode_prompt(self, pieces: list[str]) -> list[int]:
        """Tokenize the pieces of a prompt."""
        spans = self._spans(pieces) if len(pieces) > 1 else [pieces]
        return [token for span in spans for token in self._encode_span(span)]

    def encode_answer(self, answer: Sequence[AnswerPiece]) -> list[int]:
        """Tokenize the beginning of an answer, as the tokens that a model would write behind its prompt."""
        text = "".join(one.text if one.is_markup else self._marked(one.text, self._all) for one in answer)
        ids = self.encode_prompt(text.split(self._cut))
        size = len(text.replace(self._cut, "").encode())
        if not self._tokenizer.has_token_bytes or sum(map(self._size, ids)) == size:
            return ids
        # the tokenizer puts a space before a text that begins a prompt
        led = self.encode_prompt((_LINE + text).split(self._cut))
        excess = sum(map(self._size, led)) - size
        for index, token_id in enumerate(led):
            excess -= self._size(token_id)
            if excess <= 0:
                return led[index + 1 :] if not excess else ids
        return ids

    def _size(self, token_id: int) -> int:
        """Return the bytes of a token's text, also of a special one."""
        tokenizer = self._tokenizer
        return len(tokenizer.token_bytes(token_id)) or len(tokenizer.token_text(token_id).encode())

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
            if self.control_ids.isdisjoint(ids):
                return ids
        # such a tokenizer is not to be had; or it makes a control token from text, as if it were a word
        return [token for part in parts for token in self._tokenizer.encode(part, add_special_tokens=False)]

    def _cut_unwritten(self, text: str, marked: str) -> str:
        """Cut the searched tokens that the template did not write.

        Args:
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
        if message.tool_calls or message.reasoning or message.tool_call_id:
            return msgspec.structs.replace(
                message,
                content=content,
                name=name,
                tool_call_id=self._marked(message.tool_call_id, self._all),
                tool_calls=[self._mark_call(call) for call in message.tool_calls],
                reasoning=self._marked(message.reasoning, self._all),
            )
        if content is message.content and name is message.name:
            return message
        return msgspec.structs.replace(message, content=content, name=name)

    def _mark_call(self, call: ToolCall) -> ToolCall:
        return msgspec.structs.replace(
            call,
            call_id=self._marked(call.call_id, self._all),
            name=self._marked(call.name, self._all),
            arguments=self._mark_json(call.arguments),
        )

    def _mark_tool(self, tool: ToolDefinition) -> ToolDefinition:
        return msgspec.structs.replace(
            tool,
            description=self._marked(tool.description, self._all),
            parameters=self._mark_json(tool.parameters),
        )

    def _mark_json(self, text: str) -> str:
        """Mark the strings of JSON text, also those that are spelled with escapes."""
        if self._first_char.search(text) is None and "\\" not in text:
            return text
        try:
            return json.dumps(self._mark_value(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return self._marked(text, self._all)

    def _mark_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._marked(value, self._all)
        if isinstance(value, list):
            return [self._mark_value(item) for item in value]
        if isinstance(value, dict):
            return {self._mark_value(key): self._mark_value(item) for key, item in value.items()}
        return value

    def _marked(self, text: str, begins: re.Pattern[str]) -> str:
        if not text or self._first_char.search(text) is None:
            return text
        return begins.sub(self._cut_after, text)


def _any_of(chars: set[str]) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(''.join(sorted(chars)))}]" if chars else r"(?!)")
