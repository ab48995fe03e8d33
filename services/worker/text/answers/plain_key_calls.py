"""Reads calls with bare keys and special quotes: `call:name{key:<escape>text<escape>,n:2}`."""

import re

from services.worker.text.answers.call_block import MAX_WRITTEN_NAME, CallBlock
from services.worker.text.answers.json_text import as_string, inside_string, written_value
from services.worker.text.answers.text_reader import Malformed, Markers, Reading

_MAX_DEPTH = 64
_MAX_KEY = 1024
_BARE = re.compile(r"[^,\]}<]+")


def read_plain_key_calls(block: CallBlock) -> Reading[None]:
    """Reads one or more calls."""
    reader, syntax = block.reader, block.syntax
    ends = Markers(syntax.name_ends)
    while True:
        yield from reader.skip_space()
        if not (yield from reader.match(syntax.items)):
            if not block.calls:
                raise Malformed(syntax.items)
            return
        name, _ = yield from reader.take_to(ends, MAX_WRITTEN_NAME)
        block.begin(name)
        yield from _pairs(block, 0)
        block.end()


def _pairs(block: CallBlock, depth: int) -> Reading[None]:
    """Reads an object from behind its first bracket."""
    reader = block.reader
    quote = block.syntax.values[0]
    block.add("{")
    first = True
    while (yield from reader.skip_space()) != "}":
        quoted = yield from reader.match(quote)
        key, _ = yield from reader.take_to(Markers((quote if quoted else ":",)), _MAX_KEY)
        if quoted:
            yield from reader.skip_space()
            yield from reader.expect(":")
        block.add(f"{'' if first else ', '}{as_string(key.strip())}: ")
        first = False
        yield from _value(block, depth)
        if (yield from reader.skip_space()) != "}":
            yield from reader.expect(",")
    reader.take(1)
    block.add("}")


def _value(block: CallBlock, depth: int) -> Reading[None]:
    reader = block.reader
    char = yield from reader.skip_space()
    if depth > _MAX_DEPTH:
        raise Malformed("too deep")
    if char == "{":
        reader.take(1)
        yield from _pairs(block, depth + 1)
    elif char == "[":
        reader.take(1)
        yield from _items(block, depth)
    elif (yield from reader.match(block.syntax.values[0])):
        block.add('"')
        closing = Markers(block.syntax.values[1:])
        if not (yield from reader.pass_to(closing, lambda piece: block.add(inside_string(piece)))):
            raise Malformed("no end of a string")
        block.add('"')
    else:
        pieces: list[str] = []
        while (yield from reader.peek()) not in (",", "]", "}", "<", ""):
            pieces.append(reader.take_run(_BARE))
        if not "".join(pieces).strip() or not (yield from reader.peek()):
            raise Malformed("no value")
        block.add(written_value("".join(pieces).strip()))


def _items(block: CallBlock, depth: int) -> Reading[None]:
    reader = block.reader
    block.add("[")
    first = True
    while (yield from reader.skip_space()) != "]":
        if not first:
            block.add(", ")
        first = False
        yield from _value(block, depth + 1)
        if (yield from reader.skip_space()) != "]":
            yield from reader.expect(",")
    reader.take(1)
    block.add("]")
