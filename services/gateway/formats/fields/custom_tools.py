"""Custom tools with free text, served as functions whose one argument is that text. Pure.

The model sees a function with the argument `input`; its caller sees the text alone. `CustomInput` takes the
pieces of the arguments' JSON as they come and gives the pieces of the text, so that it is streamed too.
"""

import json
import re
from collections.abc import Collection

import msgspec

from shared.messages import GenerateRequest, ToolCallPart, ToolDefinition

FIELD = "input"
PARAMETERS = (
    '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],'
    '"additionalProperties":false}'
)
_HEAD = '{"input":"'
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_SPACE = re.compile(r"\s+")
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^u])")
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_PAIR = 12  # characters of two escapes that are one character


def definition_of(name: str, description: str) -> ToolDefinition:
    """The function that stands for a custom tool; not strict, so that every form of calls can have it."""
    return ToolDefinition(name=name, description=description, parameters=PARAMETERS, custom=True)


def arguments_of(text: str) -> str:
    """The arguments of the function for the input of a custom tool."""
    return msgspec.json.encode({FIELD: text}).decode()


def custom_names(request: GenerateRequest) -> frozenset[str]:
    """The names of the custom tools of a request."""
    tools = request.tools.tools if request.tools is not None else ()
    return frozenset(tool.name for tool in tools if tool.custom)


class CustomCalls:
    """The calls of custom tools in one answer, by their choice and number.

    Args:
        names: Of the custom tools.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._inputs: dict[tuple[int, int], CustomInput] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def input_of(self, part: ToolCallPart, choice: int = 0) -> str | None:
        """Takes a piece of a call; returns the new text of its input, or None if it calls a function."""
        key = choice, part.index
        if part.name in self._names:
            self._inputs[key] = CustomInput()
        found = self._inputs.get(key)
        return None if found is None else found.feed(part.arguments)


class CustomInput:
    """The input of one call, from the pieces of its arguments.

    Arguments that are no object with the text `input` are given as they are.
    """

    def __init__(self) -> None:
        self._state = "head"  # then `text` up to the closing quote, then `end`; or `raw`
        self._pending = ""

    def feed(self, piece: str) -> str:
        """Takes the next piece of the arguments; returns the new text of the input."""
        if self._state == "raw":
            return piece
        if self._state == "end":
            return ""
        self._pending += piece
        if self._state == "head":
            found = _OPENING.match(self._pending)
            if found is None:
                if _HEAD.startswith(_SPACE.sub("", self._pending)):
                    return ""
                self._state, raw = "raw", self._pending
                return raw
            self._state, self._pending = "text", self._pending[found.end() :]
        return self._text()

    def _text(self) -> str:
        pending, position = self._pending, 0
        while position < len(pending) and pending[position] != '"':
            found = _PLAIN.match(pending, position) or _ESCAPE.match(pending, position)
            if found is None:
                break  # the rest of an escape is still to come
            half = _HIGH.fullmatch(found.group())  # the other half may be still to come
            if half and len(pending) - position < _PAIR and "\\u".startswith(pending[found.end() :][:2]):
                break
            position = found.end()
        done, self._pending = pending[:position], pending[position:]
        if self._pending.startswith('"'):
            self._state = "end"
        try:
            text: str = json.loads(f'"{done}"', strict=False)
        except ValueError:  # an escape that JSON does not have
            text = done
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
