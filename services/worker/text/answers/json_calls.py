"""Reads calls whose arguments are JSON, and JSON as models write it."""

import json
import re
from collections.abc import Callable

from services.worker.text.answers.call_block import MAX_WRITTEN_NAME, CallBlock
from services.worker.text.answers.text_reader import Malformed, Markers, Reading, TextReader

_OUTSIDE = re.compile(r"[\s,:+\-.\w]+")
_INSIDE = re.compile(r'[^"\\]+')


def read_json_calls(block: CallBlock) -> Reading[None]:
    """Reads objects with a name and arguments, alone or in an array; or a named call."""
    reader, syntax = block.reader, block.syntax
    char = yield from reader.skip_space()
    if syntax.name_ends and char not in ("[", "{"):
        yield from _named_call(block, Markers(syntax.name_ends))
        return
    listed = bool((yield from reader.match("[")))
    while True:
        char = yield from reader.skip_space()
        if listed and block.calls and char == "]":
            reader.take(1)
            return
        if char != "{":
            if listed or not block.calls:
                raise Malformed("no call")
            return
        yield from _call_object(block)
        yield from reader.skip_space()
        yield from reader.match(",", ";")


def read_named_calls(block: CallBlock) -> Reading[None]:
    """Reads calls of a name and a JSON object."""
    syntax = block.syntax
    ends = Markers(syntax.name_ends)
    while (yield from block.begin_item()):
        yield from _named_call(block, ends)
        if not syntax.items:
            return


def copy_object(reader: TextReader, show: Callable[[str], None], depth: int = 0) -> Reading[None]:
    """Shows a JSON object, array or string as it is written, up to its end.

    Only brackets and strings are read, so that what is shown does not depend on what follows.

    Args:
        depth: Brackets that were opened before.

    Raises:
        Malformed: Something else stands there, or a character that JSON does not have outside strings.
    """
    while True:
        char = yield from reader.peek()
        if char == '"':
            show(reader.take(1))
            yield from _copy_string(reader, show)
        elif char in ("{", "["):
            depth += 1
            show(reader.take(1))
        elif char in ("}", "]") and char:
            depth -= 1
            show(reader.take(1))
        elif not char or not (run := reader.take_run(_OUTSIDE)):
            raise Malformed("no JSON")
        else:
            show(run)
        if depth <= 0:
            return


def read_string(reader: TextReader) -> Reading[str]:
    """Returns the value of a JSON string. Raises `Malformed` if there is none."""
    yield from reader.expect('"')
    pieces = ['"']
    yield from _copy_string(reader, pieces.append)
    try:
        value = json.loads("".join(pieces), strict=False)
    except ValueError as error:
        raise Malformed("no string") from error
    assert isinstance(value, str)
    return value


def _copy_string(reader: TextReader, show: Callable[[str], None]) -> Reading[None]:
    """Shows a string from behind its first quote to its last."""
    while True:
        char = yield from reader.peek()
        if not char:
            raise Malformed("no end of a string")
        if char == '"':
            show(reader.take(1))
            return
        if char == "\\":
            show(reader.take(1))
            if not (yield from reader.peek()):
                raise Malformed("no end of a string")
            show(reader.take(1))
        else:
            show(reader.take_run(_INSIDE))


def _call_object(block: CallBlock) -> Reading[None]:
    reader, syntax = block.reader, block.syntax
    yield from reader.expect("{")
    name, waiting, begun = None, "", False
    while True:
        if (yield from reader.skip_space()) == "}":
            reader.take(1)
            break
        key = yield from read_string(reader)
        yield from reader.skip_space()
        yield from reader.expect(":")
        char = yield from reader.skip_space()
        if not begun and name is None and key in syntax.name_keys:
            name = yield from read_string(reader)
            if waiting:
                block.begin(name, waiting)
                block.end()
                begun = True
        elif not begun and not waiting and key in syntax.argument_keys:
            if name is not None and char == "{":
                block.begin(name)
                yield from copy_object(reader, block.add)
                block.end()
                begun = True
            else:
                waiting = yield from _whole_arguments(reader, char)
                if name is not None:
                    block.begin(name, waiting)
                    block.end()
                    begun = True
        else:
            yield from _skip_value(reader, char)
        if (yield from reader.skip_space()) == "}":
            reader.take(1)
            break
        yield from reader.expect(",")
    if not begun:
        if name is None:
            raise Malformed("no name")
        block.begin(name, "{}")
        block.end()
    reader.record()


def _whole_arguments(reader: TextReader, char: str) -> Reading[str]:
    """Returns arguments that cannot be shown at once; some models write them as a string or as `null`."""
    pieces: list[str] = []
    if char == "{":
        yield from copy_object(reader, pieces.append)
        return "".join(pieces)
    if char == "n":
        yield from reader.expect("null")
        return "{}"
    text = yield from read_string(reader)
    if not text.lstrip().startswith("{") or any("\ud800" <= char <= "\udfff" for char in text):
        raise Malformed("no arguments")
    return text


def _skip_value(reader: TextReader, char: str) -> Reading[None]:
    if char in ("{", "[", '"') and char:
        yield from copy_object(reader, lambda _: None)
        return
    while (yield from reader.peek()) not in (",", "}", ""):
        if not reader.take_run(re.compile(r"[\s+\-.\w]+")):
            raise Malformed("no JSON")


def _named_call(block: CallBlock, ends: Markers) -> Reading[None]:
    reader, syntax = block.reader, block.syntax
    name, end = yield from reader.take_to(ends, MAX_WRITTEN_NAME)
    opening = end if end == "{" else ""
    if end == "[CALL_ID]":
        _, end = yield from reader.take_to(Markers(("[ARGS]",)), MAX_WRITTEN_NAME)
    for text in syntax.before_arguments:
        yield from reader.skip_space()
        yield from reader.match(text)
    if opening:
        block.begin(name, opening)
        yield from copy_object(reader, block.add, 1)
    else:
        if (yield from reader.skip_space()) != "{":
            raise Malformed("no arguments")
        block.begin(name)
        yield from copy_object(reader, block.add)
    block.end()
    for text in syntax.after_arguments:
        yield from reader.skip_space()
        yield from reader.match(text)
    reader.record()
