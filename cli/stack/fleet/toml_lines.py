"""Finds the lines of tables and keys in a TOML file, for errors: `tomllib` gives none.

It reads files that `tomllib` has accepted, so it only tells statements from what is inside values.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import Any

Place = tuple[str | int, ...]

_BARE_OR_QUOTED = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = rf"{_BARE_OR_QUOTED}(?:[ \t]*\.[ \t]*{_BARE_OR_QUOTED})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
_ASSIGNED = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    + r"|'''.*?'{3,5}"
    + r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\[\]{}]|\n""",
    re.DOTALL,
)


def lines_of(text: str) -> Mapping[Place, int]:
    """Return the line of each table and key outside of inline tables, by its path in the file's data.

    An element of an array of tables has its number in the path: `("models", 0, "name")`.
    """
    lines: dict[Place, int] = {}
    table: Place = ()
    counts = Counter[Place]()
    at, line = 0, 1
    while at < len(text):
        if header := _HEADER.match(text, at):
            table = _numbered(_parts(header[2]), counts, new=header[1] == "[[")
            lines.setdefault(table, line)
            at = header.end()
        elif assigned := _ASSIGNED.match(text, at):
            parts = _parts(assigned[1])
            for length in range(1, len(parts) + 1):
                lines.setdefault((*table, *parts[:length]), line)
            at = assigned.end()
        depth = 0
        while token := _TOKEN.search(text, at):
            at = token.end()
            line += token[0].count("\n")
            depth += (token[0] in "[{") - (token[0] in "]}")
            if token[0] == "\n" and depth <= 0:
                break
        else:
            break
    return lines


def line_of(place: Place, lines: Mapping[Place, int]) -> int:
    """Return the line of a place, or of the nearest that is around it; 1 if none is known."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def _parts(key: str) -> tuple[str, ...]:
    parts = list[str]()
    found: Any = tomllib.loads(f"{key} = 0")
    while isinstance(found, dict):
        ((name, found),) = found.items()
        parts.append(name)
    return tuple(parts)


def _numbered(parts: tuple[str, ...], counts: Counter[Place], *, new: bool) -> Place:
    """The path of a table: behind each array of tables comes the number of its last element."""
    path: Place = ()
    for index, part in enumerate(parts):
        path = (*path, part)
        if new and index == len(parts) - 1:
            counts[path] += 1
        if counts[path]:
            path = (*path, counts[path] - 1)
    return path
