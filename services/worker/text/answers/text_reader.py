"""Text that arrives in pieces, read by generators that wait for more.

A parser is written as if it had the whole text; where it needs a character that has not arrived, it yields.
So the outcome cannot depend on how the text was cut. What was taken since `record` can be had again, for text
that turns out not to be what it began as.
"""

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
_SPACE = re.compile(r"\s+")


class Malformed(Exception):
    """The text, or its end, is not what the syntax asks for."""


class Markers:
    """Texts that are searched together; none of them is the beginning of another."""

    __slots__ = ("_firsts", "_longest", "_pattern", "_texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(sorted(set(texts), key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")
        self._firsts = frozenset(text[0] for text in self._texts)
        self._longest = max(map(len, self._texts), default=1)

    def find(self, text: str, at: int) -> re.Match[str] | None:
        """Returns the first of the texts from an index on."""
        return self._pattern.search(text, at)

    def held_from(self, text: str, at: int) -> int:
        """Returns where the beginning of a marker stands that a text ends with; else its length."""
        for begin in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[begin] in self._firsts:
                rest = text[begin:]
                if any(marker.startswith(rest) for marker in self._texts):
                    return begin
        return len(text)


class TextReader:
    """The text that was not read yet.

    Attributes:
        closed: No more text comes.
    """

    __slots__ = ("_at", "_ran_out", "_recorded", "_text", "closed")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ran_out = False  # the text that was searched last may have begun where all text ends
        self._recorded: list[str] = []
        self.closed = False

    def take_cut(self) -> bool:
        """Takes the rest if the text ended before it was clear what it would be; returns whether it did."""
        if not self.closed or (self._at < len(self._text) and not self._ran_out):
            return False
        self.take(len(self._text) - self._at)
        return True

    def add(self, text: str) -> None:
        """Adds text that has arrived."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def record(self, before: str = "") -> None:
        """Forgets what was recorded, and records from here on; `before` was taken already."""
        self._recorded = [before] if before else []

    @property
    def recorded(self) -> str:
        """What was taken since `record`."""
        return "".join(self._recorded)

    def take(self, count: int) -> str:
        """Takes so many characters, which must be there."""
        text = self._text[self._at : self._at + count]
        self._at += count
        self._recorded.append(text)
        return text

    def peek(self) -> Reading[str]:
        """Returns the next character without taking it; nothing at the end."""
        while self._at == len(self._text):
            if self.closed:
                return ""
            yield
        return self._text[self._at]

    def take_run(self, run: re.Pattern[str]) -> str:
        """Takes what matches at this index of the text that is there, perhaps nothing."""
        found = run.match(self._text, self._at)
        return self.take(found.end() - self._at) if found else ""

    def skip_space(self) -> Reading[str]:
        """Takes white space, and returns the character that follows."""
        while True:
            char = yield from self.peek()
            if not char.isspace():
                return char
            if not self.take_run(_SPACE):
                self.take(1)

    def match(self, *literals: str) -> Reading[str]:
        """Takes the one of some texts that is next, the longest.

        Returns an empty text if none of them is next.
        """
        while True:
            rest = self._text[self._at : self._at + max(map(len, literals), default=0)]
            open_ones = [text for text in literals if len(text) > len(rest) and text.startswith(rest)]
            self._ran_out = self.closed and bool(open_ones)
            if self.closed or not open_ones:
                found = max((text for text in literals if rest.startswith(text)), key=len, default="")
                return self.take(len(found)) if found else ""
            yield

    def skip_cut(self, *literals: str) -> Reading[None]:
        """Takes the beginning of one of some texts, if the answer ends with it."""
        while rest := self._text[self._at :]:
            if not any(len(text) > len(rest) and text.startswith(rest) for text in literals):
                return
            if self.closed:
                self.take(len(rest))
                return
            yield

    def expect(self, literal: str) -> Reading[None]:
        """Takes a text. Raises `Malformed` if it is not next."""
        if not (yield from self.match(literal)):
            raise Malformed(literal)

    def pass_to(self, markers: Markers, show: Callable[[str], None]) -> Reading[str]:
        """Shows all text up to the next marker, and takes that too.

        Returns:
            The marker; nothing at the end of the text.
        """
        while True:
            found = markers.find(self._text, self._at)
            end = found.start() if found else len(self._text)
            if not found and not self.closed:
                end = markers.held_from(self._text, self._at)
            if end > self._at:
                show(self.take(end - self._at))
            if found:
                return self.take(len(found[0]))
            if self.closed:
                return ""
            yield

    def take_to(self, markers: Markers, most: int) -> Reading[tuple[str, str]]:
        """Takes a short text and the marker behind it, and returns both.

        Raises:
            Malformed: There is no marker within `most` characters.
        """
        pieces: list[str] = []
        while True:
            found = markers.find(self._text, self._at)
            if found:
                end = found.start()
            else:
                end = len(self._text) if self.closed else markers.held_from(self._text, self._at)
            count = min(end - self._at, most)
            most -= count
            pieces.append(self.take(count))
            if self._at < end or (self.closed and not found):
                raise Malformed("no end of a name")
            if found:
                return "".join(pieces), self.take(len(found[0]))
            yield
