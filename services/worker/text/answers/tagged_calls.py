"""Reads calls whose arguments stand between tags, each as plain text, and makes JSON of them.

The type of an argument is that of the function's schema: strings are passed on as they come, other values
when they are complete.
"""

from collections.abc import Callable

from services.worker.text.answers.call_block import MAX_WRITTEN_NAME, CallBlock
from services.worker.text.answers.json_text import as_string, inside_string, is_text, written_value
from services.worker.text.answers.text_reader import Malformed, Markers, Reading

MAX_KEY = 1024


def read_tagged_calls(block: CallBlock) -> Reading[None]:
    """Reads calls of a name and tagged arguments."""
    reader, syntax = block.reader, block.syntax
    ends = Markers(syntax.name_ends)
    while (yield from block.begin_item()):
        name, end = yield from reader.take_to(ends, MAX_WRITTEN_NAME)
        yield from _arguments(block, name, end)
        if not syntax.items or block.closed:
            return


def _arguments(block: CallBlock, written: str, end: str) -> Reading[None]:
    reader, syntax = block.reader, block.syntax
    key_opens, key_ends = syntax.keys[0], Markers(syntax.keys[1:])
    stops = (*syntax.after_arguments, *syntax.closes)
    begun, name = False, ""
    in_key = end == key_opens
    while end not in syntax.closes:
        if not in_key:
            yield from reader.skip_space()
            found = yield from reader.match(key_opens, *stops)
            if not found:
                raise Malformed("no argument")
            if found != key_opens:
                end = found
                break
        key, _ = yield from reader.take_to(key_ends, MAX_KEY)
        if syntax.values[0]:
            yield from reader.skip_space()
            yield from reader.expect(syntax.values[0])
        if not begun:
            name, begun = block.begin(written), True
            block.add("{")
        else:
            block.add(", ")
        block.add(as_string(key.strip()) + ": ")
        yield from _value(block, name, key.strip())
        in_key = False
    if not begun:
        block.begin(written, "{")
    block.end("}")
    block.closed = end in syntax.closes
    reader.record()


def _value(block: CallBlock, name: str, key: str) -> Reading[None]:
    """Reads a value and the tag behind it."""
    syntax = block.syntax
    text = is_text(block.schema_of(name, key))
    pieces: list[str] = []
    if text:
        block.add('"')
    trimmed = _Trimmed(lambda piece: block.add(inside_string(piece)) if text else pieces.append(piece))
    show = trimmed.add if syntax.trims else trimmed.show
    if not (yield from block.reader.pass_to(Markers(syntax.values[1:]), show)):
        trimmed.end(cut=True)
        block.add("".join(pieces))
        raise Malformed("no end of a value")
    trimmed.end()
    block.add('"' if text else written_value("".join(pieces)))


class _Trimmed:
    """Leaves out one line break at either end of a text that comes in pieces."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self._begun = False
        self._held = ""

    def add(self, piece: str) -> None:
        """Takes a piece that is not empty."""
        if not self._begun:
            self._begun = True
            piece = piece.removeprefix("\n")
        piece = self._held + piece
        self._held = "\n" if piece.endswith("\n") else ""
        if shown := piece.removesuffix("\n"):
            self.show(shown)

    def end(self, *, cut: bool = False) -> None:
        """Shows what was held if the text was cut here."""
        if cut and self._held:
            self.show(self._held)
