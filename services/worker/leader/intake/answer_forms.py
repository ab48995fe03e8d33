"""Decides which parts the answer to a request may have, and makes what reads them."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from services.worker.domain.answers.choice_state import Detokenizer
from services.worker.domain.answers.parted_answer import PartedAnswer
from services.worker.leader.intake.tool_checks import has_parts, offered_tools, requires_call
from services.worker.model_files.model import Model
from services.worker.text.answers.known_formats import BY_NAME, GENERIC, format_of
from services.worker.text.answers.marker_detokenizer import MarkerDetokenizer, marker_tokens
from services.worker.text.answers.parser import AnswerParser, fixed_texts
from services.worker.text.answers.tool_format import AnswerFormat, ReasoningMarks, ToolFormat, reasoning_of
from services.worker.text.tool_prompt import parameters_of
from shared.errors import InvalidRequest
from shared.messages import (
    AnswerPart,
    ChatMessage,
    GenerateRequest,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolCallPart,
)
from shared.messages.conversation import MAX_TOOL_CALLS

_LAST_TOKENS = 32  # of a prompt, in which a mark of reasoning is searched
_MAX_FORMS = 64


class BegunAnswer(Protocol):
    """The beginning of an answer that its caller has."""

    @property
    def message(self) -> ChatMessage:
        """The beginning."""
        ...

    @property
    def text(self) -> str:
        """The same as the model writes it."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How the answers to one request are read.

    Attributes:
        form: The parts that they may have.
        schemas: The functions that they may call.
        shown: Control tokens that the reader has to see.
        in_reasoning: Answers begin with reasoning.
        max_calls: Calls that each may have.
        only_calls: They have calls alone, behind reasoning.
    """

    request_id: str
    form: AnswerFormat
    schemas: Mapping[str, Mapping[str, Any]]
    shown: Mapping[int, str]
    in_reasoning: bool
    max_calls: int
    only_calls: bool = False

    def reader(self, choice: int, begun: BegunAnswer | None = None) -> PartedAnswer:
        """Makes the reader of a choice.

        Args:
            begun: What the answer goes on from; None: it begins.

        Raises:
            InvalidRequest: The calls that were begun are not read as calls.
        """
        if begun is None:
            return PartedAnswer(self._parser(choice, ()), only_calls=self.only_calls)
        calls = begun.message.tool_calls
        parser = self._parser(choice, calls)
        parts = parser.feed(begun.text)
        read = parser.num_calls
        if read != len(calls) and (read != len(calls) - 1 or calls[-1].arguments):
            raise InvalidRequest(
                "the last message has text that is read as a call of a tool, or calls that are not: it "
                "cannot be continued",
                param="messages",
            )
        if read < len(calls):  # a call without arguments is begun by what follows
            return PartedAnswer.continued(parser, replace(begun.message, tool_calls=calls[:read]), [])
        return PartedAnswer.continued(parser, begun.message, _held(begun.message, parts), reopens=True)

    def _parser(self, choice: int, calls: Sequence[ToolCall]) -> AnswerParser:
        made = call_ids(self.request_id, choice)
        return AnswerParser(
            self.form,
            self.schemas,
            lambda index: calls[index].call_id if index < len(calls) else made(index),
            in_reasoning=self.in_reasoning,
            max_calls=self.max_calls,
        )

    def detokenizer(self, inner: Detokenizer) -> Detokenizer:
        """Returns a detokenizer that shows what the reader has to see."""
        return MarkerDetokenizer(inner, self.shown) if self.shown else inner


class AnswerForms:
    """Knows the forms that a model's answers can have.

    Args:
        model: Its template shows the forms.
    """

    def __init__(self, model: Model) -> None:
        source = model.template.sources if model.template is not None else ""
        self._model = model
        self._tools = BY_NAME[model.tool_format] if model.tool_format else format_of(source) or GENERIC
        if model.template is not None and not model.template.knows_tools and not self._tools.channels:
            self._tools = GENERIC  # in which tools are described in words
        self._reasoning = reasoning_of(source)
        self._shown = functools.lru_cache(_MAX_FORMS)(self._marker_tokens)

    @property
    def reasoning(self) -> ReasoningMarks | None:
        """The marks of the reasoning that answers may have."""
        return self._tools.reasoning or self._reasoning

    def tool_format(self, request: GenerateRequest) -> ToolFormat:
        """Returns the form in which the answer to a request calls tools.

        Where a call is required, a form that no grammar enforces is replaced by the generic one.
        """
        use = request.tools
        known = BY_NAME[use.format] if use is not None and use.format else self._tools
        enforced = bool(known.calls and known.calls[0].enforced)
        return known if enforced or not requires_call(request) else GENERIC

    def form_of(self, request: GenerateRequest, tokens: list[int]) -> AnswerReading | None:
        """Returns how the answers are read; None if they have nothing but text.

        Args:
            request: A request that was checked.
        """
        if not has_parts(request):
            return None
        tools = offered_tools(request)
        called = self.tool_format(request) if tools or self._tools.channels else None
        form = AnswerFormat(tools=called, reasoning=self._reasoning)
        if form.tools is None and form.reasoning is None:
            return None
        use = request.tools
        return AnswerReading(
            request.request_id,
            form,
            {tool.name: parameters_of(tool) for tool in tools},
            self._shown(form),
            self._begins_in_reasoning(tokens),
            1 if use is not None and not use.parallel else MAX_TOOL_CALLS,
            only_calls=requires_call(request),
        )

    def _marker_tokens(self, form: AnswerFormat) -> Mapping[int, str]:
        shown = marker_tokens(self._model.tokenizer, fixed_texts(form))
        return {token_id: text for token_id, text in shown.items() if token_id not in self._model.eos_ids}

    def _begins_in_reasoning(self, tokens: list[int]) -> bool:
        """Returns whether the prompt ends with the mark that begins reasoning."""
        if self._reasoning is None:
            return False
        text = "".join(map(self._model.tokenizer.token_text, tokens[-_LAST_TOKENS:]))
        return text.rstrip().endswith(self._reasoning.opens)


def _held(message: ChatMessage, parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Returns the end of a message that its reader holds back, since it may belong to what follows.

    Args:
        parts: What the reader has given of it.
    """
    if message.tool_calls:
        last = len(message.tool_calls) - 1
        shown = "".join(one.arguments for one in parts if isinstance(one, ToolCallPart) and one.index == last)
        rest = _behind(message.tool_calls[last].arguments, shown)
        return [ToolCallPart(index=last, arguments=rest)] if rest else []
    if message.content:
        rest = _behind(message.content, "".join(one.text for one in parts if isinstance(one, TextPart)))
        return [TextPart(text=rest)] if rest else []
    shown = "".join(one.text for one in parts if isinstance(one, ReasoningPart))
    rest = _behind(message.reasoning, shown)
    return [ReasoningPart(text=rest)] if rest else []


def _behind(text: str, shown: str) -> str:
    """Returns what of a text comes behind the part that was shown; empty if it has no such part."""
    return text.partition(shown)[2] if shown else text


def call_ids(request_id: str, choice: int) -> Callable[[int], str]:
    """Returns the function from the number of a tool call to its id, the same on every group."""

    def call_id(index: int) -> str:
        digest = hashlib.blake2b(f"{request_id}/{choice}/{index}".encode(), digest_size=12)
        return f"call_{digest.hexdigest()}"

    return call_id
