"""Terms in Lark for texts without quotes, which end where a closing mark begins."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher

from services.worker.text.grammars.arguments.value_style import Write

_MOST_CHARS = 2000  # where a length is counted; the automaton grows with it
_GROUPS = re.compile(r"\\x\{[0-9a-f]+\}|\\.|\[(?:\\.|[^\]\\])*\]|[()|^$]")


class RawText:
    """Makes terms for texts that are written as they are.

    Args:
        write: Writes fixed texts.
        control: Control tokens by text.
        names: Names for terminals, not used elsewhere.
    """

    def __init__(self, write: Write, control: Mapping[str, int], names: Iterator[int]) -> None:
        self._write = write
        self._control = control
        self._names = names
        self.terminals: list[str] = []

    def term(self, schema: Mapping[str, Any], mark: str, before: str = "") -> str:
        """Returns a term for a text and the mark behind it.

        Args:
            schema: Of the text: `minLength`, `maxLength` and `pattern`.
            mark: Ends the text, which does not have it.
            before: Stands between both.

        Raises:
            KeyError: The keyword that it names is not enforced.
        """
        if "format" in schema:
            raise KeyError("format")
        least, most = schema.get("minLength", 0), min(schema.get("maxLength", _MOST_CHARS), _MOST_CHARS)
        if least > most:
            raise KeyError("minLength")
        if "pattern" in schema and len(schema.keys() & {"minLength", "maxLength"}) and _is_empty(schema):
            raise KeyError("pattern")
        token = mark in self._control
        end = before + ("" if token else mark)
        empty = not end and not least and "pattern" not in schema
        counted = least or (0 if end else 1)
        fits = [
            f"(?s:.{{{counted},{most}}})"
            if least or "maxLength" in schema
            else f"(?s:.{'*' if end else '+'})"
        ]
        if "pattern" in schema:
            fits.append(_whole(schema["pattern"]))
        suffix = escaped(end)
        parts = [f"/{_slashed(one)}{suffix}/" for one in fits]
        parts.append(f"~/(?s:.*){escaped(mark)}(?s:.{'*' if token else '+'})/")
        name = f"TEXT{next(self._names)}"
        self.terminals.append(f"{name}: {' & '.join(parts)}")
        return f"{name}{'?' if empty else ''} {self._write(mark) if token else ''}"


def escaped(text: str) -> str:
    """Returns a regular expression for a text."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def _is_empty(schema: Mapping[str, Any]) -> bool:
    """Returns whether no string satisfies a schema, which llguidance sees in JSON and not in rules."""
    wrong = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema({**schema, "type": "string"}))
    return bool(wrong) and not wrong.startswith("WARNING")


def _whole(pattern: str) -> str:
    """Returns the expression of whole texts for one that is searched. Raises `KeyError` where it cannot."""
    inner, begins, ends = pattern, pattern.startswith("^"), pattern.endswith("$")
    inner = inner[begins : len(inner) - ends]
    depth, split = 0, False
    for found in _GROUPS.finditer(inner):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        split = split or (found[0] == "|" and not depth)
        if found[0] in ("^", "$"):
            raise KeyError("pattern")
    if split and (begins or ends):
        raise KeyError("pattern")
    return f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"


def _slashed(expression: str) -> str:
    return re.sub(r"(?<!\\)/", r"\/", expression)
