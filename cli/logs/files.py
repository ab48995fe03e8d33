"""Reads log lines: from the files of a stack, merged by time and as they grow, or from a pipe."""

import heapq
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Self

from cli.logs.lines import LogLine, parse_line

MAX_LINE = 1024 * 1024  # bytes; what is longer is cut
_OLDER = ".log.1"
_PREFIX = re.compile(r"([A-Za-z0-9._-]+) +\| ?(.*)")  # of Compose: the container's name
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class LogFile:
    """One file under its name; goes on with the next file of that name when the service starts anew."""

    path: Path
    file: BinaryIO
    last_s: float = 0.0

    @property
    def service(self) -> str:
        """The name of the service."""
        return self.path.name.removesuffix(_OLDER).removesuffix(".log")

    def lines(self) -> Iterator[LogLine]:
        """Yields the lines that are complete and were not read yet."""
        while raw := self.file.readline(MAX_LINE):
            if not raw.endswith(b"\n") and len(raw) < MAX_LINE:
                self.file.seek(-len(raw), os.SEEK_CUR)  # it is being written
                return
            text = raw.decode(errors="replace").rstrip("\n")
            if not text:
                continue
            line = parse_line(text, self.service, self.last_s)
            self.last_s = line.time_s
            yield line

    def renew(self) -> None:
        """Begins at the start of what has its name now, if that is another file, or was emptied."""
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return
        ours = os.fstat(self.file.fileno())
        if now.st_ino != ours.st_ino or now.st_size < self.file.tell():
            self.file.close()
            self.file = self.path.open("rb")


class LogFiles:
    """All logs of a directory, as a context manager that closes them.

    Args:
        older: Those of the stack before as well.
    """

    def __init__(self, directory: Path, *, older: bool) -> None:
        self._directory = directory
        self._older = older
        self._files: dict[Path, LogFile] = {}
        self._find()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.file.close()

    @property
    def services(self) -> list[str]:
        """Their names, each once."""
        return sorted({file.service for file in self._files.values()})

    @property
    def has_older(self) -> bool:
        """True if the directory has logs of the stack before, read or not."""
        return any(self._directory.glob(f"*{_OLDER}"))

    def past(self) -> Iterator[LogLine]:
        """Yields all lines that are there, by their time."""
        yield from heapq.merge(*(file.lines() for file in self._files.values()), key=lambda line: line.time_s)

    def follow(self, wait: Callable[[], None]) -> Iterator[LogLine]:
        """Yields lines as they come, those of one reading by their time; `wait` sleeps between two."""
        while True:
            wait()
            for file in self._files.values():
                file.renew()
            self._find()
            yield from self.past()

    def _find(self) -> None:
        kept = [*self._directory.glob("*.log"), *(self._directory.glob(f"*{_OLDER}") if self._older else ())]
        for path in sorted(kept):
            if path not in self._files and not path.is_symlink():
                self._files[path] = LogFile(path, path.open("rb"))


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
