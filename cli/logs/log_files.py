"""Reads the log files of a stack: from the past merged by time, and what is added to them from then on."""

import heapq
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from cli.logs.log_lines import LogLine, parse_line

MAX_LINE = 1024 * 1024  # bytes; what is longer is cut
_OLDER = ".log.1"


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

    def past(self) -> Iterator[LogLine]:
        """Yields all lines that are there, by their time."""
        yield from heapq.merge(*(file.lines() for file in self._files.values()), key=lambda line: line.time_s)

    def follow(self, wait: Callable[[], None]) -> Iterator[LogLine]:
        """Yields lines as they come, those of one look by their time; `wait` passes the time between two."""
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
