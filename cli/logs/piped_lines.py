"""Reads log lines from a pipe or a file, such as what `docker compose logs` prints."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from cli.logs.log_files import MAX_LINE
from cli.logs.log_lines import LogLine, parse_line

_PREFIX = re.compile(r"([A-Za-z0-9._-]+) +\| ?(.*)")  # of Compose: the container's name
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def piped_lines(source: str) -> Iterator[LogLine]:
    """Yields lines in their order; their service is the name before `|`, or else the line's own.

    Args:
        source: A file; `-`: standard input.

    Raises:
        OSError: The file cannot be read.
    """
    last_s: dict[str, float] = {}
    with ExitStack() as stack:
        piped = source == "-"
        file = sys.stdin if piped else stack.enter_context(Path(source).open(errors="replace"))
        while raw := file.readline(MAX_LINE):
            text = _COLOUR.sub("", raw.rstrip("\n"))
            prefix = _PREFIX.fullmatch(text)
            name, text = (prefix[1], prefix[2]) if prefix is not None else ("", text)
            if text:
                line = parse_line(text, name, last_s.get(name, 0.0))
                last_s[name] = line.time_s
                yield line if name else replace(line, service=str(line.fields.get("service", "")))
