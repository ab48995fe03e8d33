"""What the readers of all syntaxes share: one block of calls that is being read."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from services.worker.text.answers.part_writer import PartWriter
from services.worker.text.answers.text_reader import Malformed, Reading, TextReader
from services.worker.text.answers.tool_format import CallSyntax

MAX_NAME = 128  # characters, as on the wire
MAX_WRITTEN_NAME = 256  # with what belongs to the syntax
ToolSchemas = Mapping[str, Mapping[str, Any]]


class CallBlock:
    """One block of calls.

    A call begins when its name and the beginning of its arguments were read. Before that, text that does not
    fit the syntax turns all of it back into text; after that, it ends the call.

    Args:
        schemas: The functions that the request has, by name: the JSON Schema of their arguments.
        max_calls: Calls that the answer may have.

    Attributes:
        calls: Calls that this block had so far.
        closed: The text that closes the block was taken.
    """

    __slots__ = ("_max_calls", "_schemas", "calls", "closed", "reader", "syntax", "writer")

    def __init__(
        self, reader: TextReader, writer: PartWriter, syntax: CallSyntax, schemas: ToolSchemas, max_calls: int
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.syntax = syntax
        self._schemas = schemas
        self._max_calls = max_calls
        self.calls = 0
        self.closed = False

    @property
    def ends(self) -> bool:
        """The answer has all the calls that it may have."""
        return self.writer.num_calls >= self._max_calls

    def begin_item(self) -> Reading[bool]:
        """Reads the mark before a call, if the syntax has one; returns False after the last call.

        Raises:
            Malformed: The block has no call.
        """
        items = self.syntax.items
        if not items:
            return True
        yield from self.reader.skip_space()
        if (yield from self.reader.match(items)):
            return True
        if not self.calls:
            raise Malformed(items)
        return False

    def begin(self, written: str, opening: str = "") -> str:
        """Begins a call.

        Args:
            written: The name as the model wrote it.
            opening: First piece of the arguments.

        Returns:
            The function's name.

        Raises:
            Malformed: It cannot be a name, or the answer may have no more calls.
        """
        found = re.fullmatch(self.syntax.name_pattern, written, re.DOTALL)
        name = found[1] if found else ""
        known = name in self._schemas
        if not known and (not self.syntax.opens or not 0 < len(name) <= MAX_NAME or not name.isprintable()):
            raise Malformed("no name of a function")
        if self.ends:
            raise Malformed("too many calls")
        self.writer.begin_call(name)
        self.reader.record()
        self.calls += 1
        self.writer.add_arguments(opening)
        return name

    def end(self, closing: str = "") -> None:
        """Ends the call; `closing` is the last piece of its arguments."""
        self.writer.add_arguments(closing)
        self.writer.end_call()
        self.reader.record()

    @property
    def add(self) -> Callable[[str], None]:
        """Adds a piece of the arguments."""
        return self.writer.add_arguments

    def schema_of(self, name: str, argument: str) -> Mapping[str, Any]:
        """Returns the JSON Schema of an argument; an empty one if it is not known."""
        properties = self._schemas.get(name, {}).get("properties")
        found = properties.get(argument) if isinstance(properties, dict) else None
        return found if isinstance(found, dict) else {}
