"""The state machine that makes blocks and their events from the parts of an answer. Pure.

Whatever the borders between parts, the blocks at the end are the same, and they are what the events say when
they are joined. One block is open at a time; a part of another kind, or of another call, closes it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from shared.messages import AnswerPart, Delta, TextPart, ToolCallPart

Event = tuple[str, dict[str, Any]]  # its type and its fields


class AnswerBlocks(ABC):
    """The blocks of one answer.

    Attributes:
        blocks: The blocks so far; an open one, at the end, is not complete.
    """

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._kind = ""  # of the open block; empty: none is open
        self._call = -1  # its index, if it is a call
        self._pieces: list[str] = []  # of the open block

    def _take_parts(self, delta: Delta) -> Iterator[Event]:
        parts: Sequence[AnswerPart] = delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
        for part in parts:
            kind, piece = self._read(part)
            call = part.index if isinstance(part, ToolCallPart) else -1
            if call < 0 and not piece:
                continue
            if self._kind != kind or self._call != call:
                yield from self._close_open("completed")
                self._kind, self._call, self._pieces = kind, call, []
                yield from self._open(part)
            if piece:
                self._pieces.append(piece)
                yield from self._add(piece)

    def _close_open(self, status: str) -> Iterator[Event]:
        """Closes the open block, if there is one; `status`: `completed` or `incomplete`."""
        if self._kind:
            yield from self._close("".join(self._pieces), status)
            self._kind, self._call, self._pieces = "", -1, []

    @abstractmethod
    def _read(self, part: AnswerPart) -> tuple[str, str]:
        """The kind of block that a part belongs to, and the text that it adds."""

    @abstractmethod
    def _open(self, part: AnswerPart) -> Iterator[Event]:
        """Appends the block that a part begins, of the kind `_kind`."""

    @abstractmethod
    def _add(self, piece: str) -> Iterator[Event]:
        """The events for more text of the open block."""

    @abstractmethod
    def _close(self, text: str, status: str) -> Iterator[Event]:
        """Completes the open block with its whole text."""
