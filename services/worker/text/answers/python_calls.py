"""Reads calls written as in Python, `[name(key="value"), other()]`, and makes JSON of their arguments."""

import re

from services.worker.text.answers.call_block import CallBlock
from services.worker.text.answers.json_text import as_string, inside_string, number
from services.worker.text.answers.text_reader import Malformed, Reading

_NAME = re.compile(r"[\w.\-]+")
_KEY = re.compile(r"\w+")
_WORD = re.compile(r"[\w.+\-]+")
_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_MAX_DEPTH = 64
_MAX_WORD = 512


def read_python_calls(block: CallBlock) -> Reading[None]:
    """Reads calls in brackets; in a block with a text that opens it, also without brackets."""
    reader = block.reader
    yield from reader.skip_space()
    listed = bool((yield from reader.match("[")))
    if not listed and not block.syntax.opens:
        raise Malformed("no list")
    while True:
        char = yield from reader.skip_space()
        if listed and block.calls and char == "]":
            reader.take(1)
            reader.record()
            return
        if not listed and block.calls and not _NAME.match(char):
            return
        yield from _call(block)
        yield from reader.skip_space()
        yield from reader.match(",", ";")


def _call(block: CallBlock) -> Reading[None]:
    reader = block.reader
    name = yield from _word(block, _NAME)
    yield from reader.skip_space()
    yield from reader.expect("(")
    begun = False
    while True:
        if (yield from reader.skip_space()) == ")":
            reader.take(1)
            break
        key = yield from _word(block, _KEY)
        yield from reader.skip_space()
        yield from reader.expect("=")
        yield from reader.skip_space()
        if not begun:
            block.begin(name, "{")
        block.add(f"{', ' if begun else ''}{as_string(key)}: ")
        begun = True
        yield from _value(block, 0)
        if (yield from reader.skip_space()) != ")":
            yield from reader.expect(",")
    if not begun:
        block.begin(name, "{")
    block.end("}")


def _word(block: CallBlock, form: re.Pattern[str]) -> Reading[str]:
    """Returns the longest text of a form, which is not empty."""
    pieces: list[str] = []
    count = 0
    while (char := (yield from block.reader.peek())) and form.match(char):
        pieces.append(block.reader.take(1))
        count += 1
        if count > _MAX_WORD:
            break
    if not 0 < count <= _MAX_WORD:
        raise Malformed("no word")
    return "".join(pieces)


def _value(block: CallBlock, depth: int) -> Reading[None]:
    reader = block.reader
    char = yield from reader.peek()
    if depth > _MAX_DEPTH:
        raise Malformed("too deep")
    if char in ("'", '"') and char:
        yield from _string(block)
    elif char in ("[", "(") and char:
        reader.take(1)
        yield from _items(block, depth, "]" if char == "[" else ")")
    elif char == "{":
        reader.take(1)
        yield from _pairs(block, depth)
    else:
        word = yield from _word(block, _WORD)
        block.add(number(word))


def _items(block: CallBlock, depth: int, closing: str) -> Reading[None]:
    block.add("[")
    first = True
    while (yield from block.reader.skip_space()) != closing:
        if not first:
            block.add(", ")
        first = False
        yield from _value(block, depth + 1)
        if (yield from block.reader.skip_space()) != closing:
            yield from block.reader.expect(",")
    block.reader.take(1)
    block.add("]")


def _pairs(block: CallBlock, depth: int) -> Reading[None]:
    block.add("{")
    first = True
    while (char := (yield from block.reader.skip_space())) != "}":
        if char not in ("'", '"') or not char:
            raise Malformed("no key")
        if not first:
            block.add(", ")
        first = False
        yield from _string(block)
        yield from block.reader.skip_space()
        yield from block.reader.expect(":")
        block.add(": ")
        yield from block.reader.skip_space()
        yield from _value(block, depth + 1)
        if (yield from block.reader.skip_space()) != "}":
            yield from block.reader.expect(",")
    block.reader.take(1)
    block.add("}")


def _string(block: CallBlock) -> Reading[None]:
    reader = block.reader
    char = yield from reader.peek()
    quote = yield from reader.match(char * 3, char)
    if quote == char and (yield from reader.peek()) == char:  # two quotes: an empty string
        reader.take(1)
        block.add('""')
        return
    block.add('"')
    run = re.compile(rf"[^\\{char}]+")
    while True:
        if shown := reader.take_run(run):
            block.add(inside_string(shown))
        char = yield from reader.peek()
        if not char:
            raise Malformed("no end of a string")
        if char == "\\":
            reader.take(1)
            block.add(inside_string((yield from _escaped(block))))
        elif char == quote[0]:
            if (yield from reader.match(quote)):
                block.add('"')
                return
            block.add(inside_string(reader.take(1)))


def _escaped(block: CallBlock) -> Reading[str]:
    """Returns the character of an escape; an unknown one stays as it is written."""
    reader = block.reader
    char = yield from reader.peek()
    if not char:
        raise Malformed("no end of a string")
    reader.take(1)
    if char not in _DIGITS:
        return _ESCAPES.get(char, "\\" + char)
    digits = ""
    while len(digits) < _DIGITS[char] and re.match(r"[0-9a-fA-F]", (yield from reader.peek())):
        digits += reader.take(1)
    if len(digits) < _DIGITS[char] or int(digits, 16) > 0x10FFFF:
        return "\\" + char + digits
    return chr(int(digits, 16))
