"""Reads the append-only log of a Redis (7.0 or newer): files, commands, and where Redis began to write.

The log is one base file and files of commands after it, named by a manifest. A Redis that starts, or rewrites
the log, writes `SELECT` before its first command, so that the next `SELECT` in the log shows a restart.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

LOG_DIR = "appendonlydir"
_MANIFEST = ".manifest"


class Block(NamedTuple):
    """A command of the log, or the commands of one transaction.

    Attributes:
        start: Its offset in the file, in bytes.
        is_transaction: It begins with `MULTI`.
        has_select: It has a `SELECT`.
    """

    start: int
    end: int
    is_transaction: bool
    has_select: bool


class DamagedLog(Exception):
    """The log cannot be read; the text says where."""


@dataclass(frozen=True, slots=True)
class AppendOnlyLog:
    """The files of a log.

    Attributes:
        manifest: The file that names the others.
        base: The state to begin with; None: an empty one.
        increments: Files of commands, in their order.
        rewrites: How often the log was rewritten; each rewrite kept only what Redis had in memory.
    """

    manifest: Path
    base: Path | None
    increments: tuple[Path, ...]
    rewrites: int

    def restarts(self) -> int:
        """Returns how often Redis was started on this log and wrote to it, after the first time."""
        starts = sum(block.has_select for path in self.increments for block in read_blocks(path))
        return max(0, starts - 1)

    def copy_to(self, directory: Path, *, last_run_only: bool = False) -> None:
        """Copies the log into another directory.

        Args:
            directory: Gets a directory `LOG_DIR`.
            last_run_only: Leave out the transactions before the last start: what a Redis that refuses them
                there has read.
        """
        target = directory / LOG_DIR
        target.mkdir(mode=0o700)
        for path in filter(None, (self.manifest, self.base)):
            shutil.copy(path, target)
        last = self._last_start() if last_run_only else (0, 0)
        for number, path in enumerate(self.increments):
            with path.open("rb") as source, (target / path.name).open("wb") as copy:
                if number < last[0]:
                    _copy_blocks(source, path, copy, path.stat().st_size)
                elif number == last[0]:
                    _copy_blocks(source, path, copy, last[1])
                    shutil.copyfileobj(source, copy)
                else:
                    shutil.copyfileobj(source, copy)

    def _last_start(self) -> tuple[int, int]:
        """Returns the file of commands and the offset at which the last start of Redis began to write."""
        found = [
            (number, block.start)
            for number, path in enumerate(self.increments)
            for block in read_blocks(path)
            if block.has_select
        ]
        return found[-1] if found else (0, 0)


def find_log(directory: Path) -> AppendOnlyLog | None:
    """Returns the log in a directory of Redis, or None if there is none.

    Raises:
        DamagedLog: The manifest cannot be read, or names a file that is not there.
    """
    manifests = sorted((directory / LOG_DIR).glob(f"*{_MANIFEST}"))
    if not manifests:
        return None
    base, increments, rewrites = None, list[Path](), 0
    for line in manifests[0].read_text().splitlines():
        words = line.split()
        known = dict(zip(words[::2], words[1::2], strict=False))
        path, kind = manifests[0].with_name(known.get("file", "")), known.get("type")
        if kind == "b":
            base, rewrites = path, int(known["seq"]) - 1
        elif kind == "i":
            increments.append(path)
    for path in (*([base] if base else []), *increments):
        if not path.is_file():
            raise DamagedLog(f"{manifests[0]} names {path.name}, which is not there")
    return AppendOnlyLog(manifests[0], base, tuple(increments), rewrites)


def read_blocks(path: Path) -> Iterator[Block]:
    """Yields the commands and transactions of a file; one that is cut off at its end is left out.

    Raises:
        DamagedLog: Something else than a command is in the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start, in_transaction, has_select, begun = 0, False, False, 0
        while (name := _read_command(file, path)) is not None and file.tell() <= size:
            if name == b"MULTI":
                in_transaction, begun, has_select = True, start, False
            elif in_transaction:
                has_select |= name == b"SELECT"
                if name == b"EXEC":
                    yield Block(begun, file.tell(), True, has_select)
                    in_transaction = False
            else:
                yield Block(start, file.tell(), False, name == b"SELECT")
            start = file.tell()


def _read_command(file: BinaryIO, path: Path) -> bytes | None:
    """Skips one command and returns its name in capitals; None at the end of the file."""
    line = file.readline()
    while line.startswith(b"#"):  # a time stamp (`aof-timestamp-enabled`)
        line = file.readline()
    if not line.endswith(b"\r\n"):
        return None
    name = b""
    for number in range(_count(line, b"*", file, path)):
        head = file.readline()
        if not head.endswith(b"\r\n"):
            return None
        length = _count(head, b"$", file, path)
        if number == 0:
            name = file.read(length)
            file.seek(2, 1)
        else:
            file.seek(length + 2, 1)
    return name.upper()


def _count(line: bytes, sign: bytes, file: BinaryIO, path: Path) -> int:
    digits = line[1:-2]
    if line[:1] != sign or not digits.isdigit():
        raise DamagedLog(f"{path} is damaged before byte {file.tell()}: `redis-check-aof` says more")
    return int(digits)


def _copy_blocks(source: BinaryIO, path: Path, copy: BinaryIO, end: int) -> None:
    """Copies the commands outside of transactions up to `end`, and leaves `source` there."""
    for block in read_blocks(path):
        if block.end > end:
            break
        if not block.is_transaction:
            source.seek(block.start)
            copy.write(source.read(block.end - block.start))
    source.seek(end)
