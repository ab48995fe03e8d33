"""Collects the parts of an answer in order, and joins neighbours of one kind."""

from collections.abc import Callable

from shared.messages.answer_parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart

CallIds = Callable[[int], str]


class PartWriter:
    """Makes the parts.

    White space may belong to the syntax around a call or to the text: `add_space` keeps it until then.

    Args:
        call_ids: Returns the id of a call by its number.

    Attributes:
        num_calls: Calls that were begun.
        in_call: The last one is not ended.
    """

    __slots__ = ("_call_ids", "_kinds", "_pieces", "_space", "in_call", "num_calls")

    def __init__(self, call_ids: CallIds) -> None:
        self._call_ids = call_ids
        self._kinds: list[str] = []  # of the pieces: text, reasoning, call, arguments
        self._pieces: list[str] = []
        self._space: list[str] = []
        self.num_calls = 0
        self.in_call = False

    def add_text(self, text: str) -> None:
        """Adds text, behind the white space that was kept."""
        if text:
            self._release_space("text")
            self._add("text", text)

    def add_reasoning(self, text: str) -> None:
        """Adds reasoning, behind the white space that was kept."""
        if text:
            self._release_space("reasoning")
            self._add("reasoning", text)

    def add_space(self, space: str) -> None:
        """Keeps white space until it is known what it belongs to."""
        if space:
            self._space.append(space)

    def drop_space(self) -> None:
        """Drops the white space that was kept: it is syntax."""
        self._space.clear()

    def release_space(self) -> None:
        """Adds the white space that was kept as text."""
        self._release_space("text")

    def begin_call(self, name: str) -> None:
        """Begins a call."""
        self.drop_space()
        self._kinds.append("call")
        self._pieces.append(name)
        self.num_calls += 1
        self.in_call = True

    def add_arguments(self, text: str) -> None:
        """Adds a piece of the arguments of the call."""
        if text:
            self._add("arguments", text)

    def end_call(self) -> None:
        """Ends the call."""
        self.in_call = False

    def take_parts(self) -> list[AnswerPart]:
        """Returns what was added since the last time."""
        parts: list[AnswerPart] = []
        index = self.num_calls - self._kinds.count("call") - 1
        for kind, piece in self._joined():
            if kind == "text":
                parts.append(TextPart(text=piece))
            elif kind == "reasoning":
                parts.append(ReasoningPart(text=piece))
            elif kind == "call":
                index += 1
                parts.append(ToolCallPart(index=index, call_id=self._call_ids(index), name=piece))
            else:
                parts.append(ToolCallPart(index=index, arguments=piece))
        self._kinds, self._pieces = [], []
        return parts

    def _joined(self) -> list[tuple[str, str]]:
        joined: list[tuple[str, list[str]]] = []
        for kind, piece in zip(self._kinds, self._pieces, strict=True):
            if joined and joined[-1][0] == kind and kind != "call":
                joined[-1][1].append(piece)
            else:
                joined.append((kind, [piece]))
        return [(kind, "".join(pieces)) for kind, pieces in joined]

    def _release_space(self, kind: str) -> None:
        if self._space:
            self._add(kind, "".join(self._space))
            self._space.clear()

    def _add(self, kind: str, text: str) -> None:
        self._kinds.append(kind)
        self._pieces.append(text)
