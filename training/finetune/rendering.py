"""Turns chats into tokens, and finds those that are the assistant's answers: only these are learned.

The tokens are those that a group would compute: the same template, tokenizer and guard of control tokens.
Answers are found by the template's `{% generation %}` marks if it has any, else by rendering the chat up to
each answer and after it. Where either leaves a doubt, the chat is refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.worker.model_files.model import Model
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.template_guard import TemplateOverran
from shared.errors import InvalidRequest
from shared.messages import ChatMessage
from training.finetune.chats import Chat
from training.finetune.errors import FinetuneError

_LIMIT_S = 5.0
_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


@dataclass(frozen=True, slots=True)
class TokenChat:
    """A chat as tokens.

    Attributes:
        line: Of the file.
        answers: Whether each token is learned; never the first.
    """

    line: int
    tokens: tuple[int, ...]
    answers: tuple[bool, ...]

    @property
    def num_answers(self) -> int:
        """Return the number of learned tokens."""
        return sum(self.answers)


class ChatRenderer:
    """Renders chats with a model's template.

    Raises:
        FinetuneError: The model has no template.
    """

    def __init__(self, model: Model) -> None:
        if model.template is None:
            raise FinetuneError(
                f"{model.name} has no chat template, so chats cannot be trained; choose a chat model"
            )
        self._model, self._template = model, model.template
        self._guard = ControlTokenGuard(model.tokenizer, model.template)
        self.has_marks = _TAG.search(model.template.source) is not None

    def tokens_of(self, chat: Chat) -> TokenChat:
        """Render a chat.

        Raises:
            FinetuneError: The template refuses it, or its answers cannot be told from the rest for certain.
        """
        messages = list(chat.messages)
        try:
            pieces = self._render(messages, prompt=False)
            spans = self._marked(messages, pieces) if self.has_marks else self._stepwise(messages, pieces)
        except InvalidRequest as error:
            raise FinetuneError(f"line {chat.line}: {error.message}") from error
        except TemplateOverran:
            raise FinetuneError(f"line {chat.line}: the chat template takes too long") from None
        except _AmbiguousError as error:
            raise FinetuneError(f"line {chat.line}: {error}") from None
        tokens = self._guard.encode_prompt(pieces)
        answers = [False] * len(tokens)
        for index, (begin, end) in spans.items():
            if index not in chat.trained:
                continue
            first, last = (self._count(pieces, tokens, at, chat.line) for at in (begin, end))
            last = self._after_end(tokens, first, last)
            answers[first:last] = [True] * (last - first)
        if not any(answers) or answers[0]:
            raise FinetuneError(f"line {chat.line}: the chat template writes nothing before the first answer")
        return TokenChat(chat.line, tuple(tokens), tuple(answers))

    def ends_answers(self, chat: TokenChat) -> bool:
        """Return whether the last learned token ends an answer, so that the model learns to stop."""
        learned = [token for token, is_answer in zip(chat.tokens, chat.answers, strict=True) if is_answer]
        return learned[-1] in self._model.eos_ids

    def _render(self, messages: list[ChatMessage], *, prompt: bool) -> list[str]:
        return self._guard.render_prompt(messages, _LIMIT_S, generation_prompt=prompt)

    def _stepwise(self, messages: list[ChatMessage], pieces: list[str]) -> dict[int, tuple[int, int]]:
        """Find the answers, as ranges of characters, by rendering the chat up to each and after it."""
        text, spans = "".join(pieces), dict[int, tuple[int, int]]()
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = "".join(self._render(messages[:index], prompt=True))
            after = "".join(self._render(messages[: index + 1], prompt=False))
            which = f"answer {len(spans) + 1}"
            if not text.startswith(after):  # some templates end a chat that asks for no answer with a token
                after = next((cut for cut in self._without_end(after) if text.startswith(cut)), after)
            if not text.startswith(after):
                raise _AmbiguousError(
                    f"the chat template writes {which} in another way when messages follow, so it is not "
                    "known what to learn; make each answer the last one of a chat of its own"
                )
            if not after.startswith(before):
                raise _AmbiguousError(
                    f"the chat template begins {which} in another way than the prompt for it, so it is not "
                    "known what to learn; use a template with {% generation %} marks"
                )
            spans[index] = len(before), len(after)
        return self._checked(messages, text, spans)

    def _without_end(self, text: str) -> Iterator[str]:
        for control in self._model.control_texts.union(self._template.special_tokens.values()):
            if control and text.endswith(control):
                yield text.removesuffix(control)

    def _marked(self, messages: list[ChatMessage], pieces: list[str]) -> dict[int, tuple[int, int]]:
        """Find the answers by the template's marks, which transformers reads."""
        from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 (slow)

        text = "".join(pieces)
        plain = [{"role": one.role, "content": one.content} for one in messages]
        shown, indices = render_jinja_template(
            [plain],
            chat_template=self._template.source,
            return_assistant_tokens_mask=True,
            **self._template.special_tokens,
        )
        if shown[0] != text:
            raise _AmbiguousError(
                "transformers renders the chat template in another way than the engine, so its marks of "
                "answers cannot be used"
            )
        assistants = [index for index, one in enumerate(messages) if one.role == "assistant"]
        if len(indices[0]) != len(assistants):
            raise _AmbiguousError(
                f"the chat template marks {len(indices[0])} answers, and the chat has {len(assistants)}"
            )
        spans = {index: (int(one[0]), int(one[1])) for index, one in zip(assistants, indices[0], strict=True)}
        return self._checked(messages, text, spans)

    @staticmethod
    def _checked(
        messages: Sequence[ChatMessage], text: str, spans: dict[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        for number, (index, (begin, end)) in enumerate(spans.items(), 1):
            if messages[index].content.strip() not in text[begin:end]:
                raise _AmbiguousError(
                    f"the chat template changes the text of answer {number}, so it is not known what to learn"
                )
        return spans

    def _count(self, pieces: list[str], tokens: list[int], chars: int, line: int) -> int:
        """Return how many tokens the first characters have, which no token may cross."""
        head = self._guard.encode_prompt(list(_head(pieces, chars)))
        if tokens[: len(head)] != head:
            raise FinetuneError(
                f"line {line}: a token lies across the border of an answer, so that the prompt of a group "
                "would have other tokens; begin or end the answer with another text"
            )
        return len(head)

    def _after_end(self, tokens: list[int], first: int, last: int) -> int:
        """Return the end of the learned tokens: behind the first one that ends an answer, if there is one."""
        ends = (index + 1 for index in range(first, last) if tokens[index] in self._model.eos_ids)
        return next(ends, last)


class _AmbiguousError(Exception):
    pass


def _head(pieces: Sequence[str], chars: int) -> Iterator[str]:
    for piece in pieces:
        yield piece[:chars]
        chars -= len(piece)
        if chars <= 0:
            return
