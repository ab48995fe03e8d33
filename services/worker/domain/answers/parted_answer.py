"""The answer of one choice as typed parts: what is shown, what was not sent yet, and what the session keeps.

Stop strings are searched in the text that the user sees, not in reasoning or in the arguments of calls.
"""

from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from services.worker.domain.answers.stop_strings import StopMatcher
from shared.messages import ChatMessage, FinishReason, ToolCall
from shared.messages.answer_parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart, join_parts


class AnswerReader(Protocol):
    """Makes parts of text. The parts joined do not depend on how the text is cut."""

    @property
    def reasoning(self) -> bool:
        """The text that comes now is reasoning."""
        ...

    @property
    def ended(self) -> bool:
        """The answer has all the calls that it may have, and the last one is complete."""
        ...

    @property
    def num_calls(self) -> int:
        """Calls that were begun."""
        ...

    def feed(self, text: str) -> list[AnswerPart]:
        """Takes the next piece, and returns the parts that are certain with it."""
        ...

    def finish(self, *, cut: bool = False) -> list[AnswerPart]:
        """Returns the rest, once no more text comes; `cut`: the model did not end the answer."""
        ...


@dataclass(slots=True, eq=False)
class PartedAnswer:
    """The parts of one choice.

    Attributes:
        only_calls: A grammar lets it have calls alone, behind reasoning.
        reasoning_tokens: Tokens that are reasoning, their marks included.
        unsent: Parts that the caller has not got yet.
        reasoning: All reasoning, in pieces.
    """

    reader: AnswerReader
    only_calls: bool = False
    reasoning_tokens: int = 0
    unsent: list[AnswerPart] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    _calls: list[ToolCallPart] = field(default_factory=list)
    _arguments: list[list[str]] = field(default_factory=list)
    _held: list[AnswerPart] = field(default_factory=list)

    @classmethod
    def continued(
        cls,
        reader: AnswerReader,
        message: ChatMessage,
        held: list[AnswerPart],
        *,
        reopens: bool = False,
    ) -> "PartedAnswer":
        """Makes the parts of an answer that goes on from a message.

        Args:
            held: The end of the message that the reader has not given as parts yet; the caller has it.
            reopens: The last call of the message is begun once more, so that its new arguments belong to it.
        """
        answer = cls(reader, reasoning=[message.reasoning], _held=held)
        for index, call in enumerate(message.tool_calls):
            answer._calls.append(ToolCallPart(index=index, call_id=call.call_id, name=call.name))
            answer._arguments.append([call.arguments])
        if reopens:
            answer.unsent += answer._calls[-1:]
        return answer

    def read(
        self, piece: str, reason: FinishReason | None, stops: StopMatcher | None
    ) -> tuple[str, FinishReason | None]:
        """Takes the text of one token, and the reason to end with it.

        Returns:
            The new text for the user, and why the choice ends; None if it goes on.
        """
        reader, was_reasoning = self.reader, self.reader.reasoning
        parts = reader.feed(piece)
        if self._held:
            parts = self._without_held(parts)
        self.reasoning_tokens += was_reasoning or reader.reasoning
        if reader.ended:
            reason = "stop"
            last = max(
                (index for index, part in enumerate(parts) if isinstance(part, ToolCallPart)), default=-1
            )
            parts = parts[: last + 1]
        elif reason is not None:
            rest = self._rest(cut=reason == "length")
            parts += self._without_held(rest) if self._held else rest
        if stops is not None:
            parts, reason = _stopped(parts, reason, stops)
        self._keep(parts)
        if reason == "stop" and reader.num_calls:
            reason = "tool_calls"
        return "".join(part.text for part in parts if isinstance(part, TextPart)), reason

    def take_unsent(self) -> list[AnswerPart]:
        """Returns the parts that the caller has not got; none if they are only text."""
        unsent, self.unsent = self.unsent, []
        return join_parts(unsent) if any(not isinstance(part, TextPart) for part in unsent) else []

    def calls(self) -> list[ToolCall]:
        """Returns the calls so far."""
        return [
            ToolCall(call_id=call.call_id, name=call.name, arguments="".join(pieces))
            for call, pieces in zip(self._calls, self._arguments, strict=True)
        ]

    def _rest(self, *, cut: bool) -> list[AnswerPart]:
        """Returns what is left at the end. Of an answer of calls alone, cut text is the beginning of one."""
        rest = self.reader.finish(cut=cut)
        if cut and self.only_calls:
            return [part for part in rest if not isinstance(part, TextPart)]
        return rest

    def _without_held(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Leaves out what the caller has, as far as it comes in the form that it was to have."""
        new: list[AnswerPart] = []
        for part in parts:
            held = self._held[0] if self._held else None
            if held is None or type(part) is not type(held):
                self._held = []
                new.append(part)
                continue
            known, text = _text_of(held), _text_of(part)
            if text.startswith(known):
                del self._held[0]
                new += [_with_text(part, text[len(known) :])] if len(text) > len(known) else []
            elif known.startswith(text):
                self._held[0] = _with_text(held, known[len(text) :])
            else:
                self._held = []
                new.append(part)
        return new

    def _keep(self, parts: list[AnswerPart]) -> None:
        self.unsent += parts
        for part in parts:
            if isinstance(part, ReasoningPart):
                self.reasoning.append(part.text)
            elif isinstance(part, ToolCallPart):
                if part.name:
                    self._calls.append(part)
                    self._arguments.append([])
                self._arguments[-1].append(part.arguments)


def _text_of(part: AnswerPart) -> str:
    return part.arguments if isinstance(part, ToolCallPart) else part.text


def _with_text(part: AnswerPart, text: str) -> AnswerPart:
    if isinstance(part, ToolCallPart):
        return replace(part, arguments=text)
    return replace(part, text=text)


def _stopped(
    parts: list[AnswerPart], reason: FinishReason | None, stops: StopMatcher
) -> tuple[list[AnswerPart], FinishReason | None]:
    """Cuts the parts at the first stop string, and holds back text that may begin one."""
    shown: list[AnswerPart] = []
    for part in parts:
        if isinstance(part, TextPart):
            text, found = stops.feed(part.text)
            shown += [TextPart(text=text)] if text else []
            if found:
                return shown, "stop"
        else:
            shown += [TextPart(text=held)] if (held := stops.flush()) else []
            shown.append(part)
    if reason is not None and (held := stops.flush()):
        shown.append(TextPart(text=held))
    return shown, reason
