"""Records the files of a pulled model with sizes and checksums, and checks that they are still the same.

A record lies beside the model as `.NAME.json`. A file whose size and time of change are as recorded counts as
unchanged; with another time its checksum decides.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cli.stack.host.private import write_private

_CHUNK = 1 << 20
_LARGEST_RECORD = 1 << 20
Counted = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """A file of a model; `path` is relative to the directory in which the record lies."""

    path: str
    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model that was pulled.

    Attributes:
        name: As `ryz models pull` takes it.
        source: Where it came from, in words.
        licence: Its licence's name, as its source gives it; empty if unknown.
    """

    name: str
    source: str
    licence: str = ""
    files: tuple[RecordedFile, ...] = field(default=())

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


class DamagedModel(Exception):
    """A file is not as it was pulled; the text names it."""


def record_path(target: Path) -> Path:
    """Return where the record of a model lies."""
    return target.with_name(f".{target.name}.json")


def read_record(target: Path) -> ModelRecord | None:
    """Return the record of a model; None if there is none, or one that cannot be read."""
    try:
        with record_path(target).open("rb") as file:
            raw = json.loads(file.read(_LARGEST_RECORD))
        files = tuple(RecordedFile(**one) for one in raw.pop("files"))
        return ModelRecord(**raw, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_record(target: Path, record: ModelRecord) -> None:
    """Write the record in one step."""
    draft = record_path(target).with_name(f".{target.name}.{os.getpid()}.json")
    write_private(draft, json.dumps(asdict(record), indent=1) + "\n")
    draft.replace(record_path(target))


def recorded(path: Path, base: Path, sha256: str) -> RecordedFile:
    """Return what is recorded of a file whose checksum is known."""
    found = path.stat()
    return RecordedFile(
        path=path.relative_to(base).as_posix(), size=found.st_size, sha256=sha256, mtime_ns=found.st_mtime_ns
    )


def require_intact(target: Path, record: ModelRecord) -> None:
    """Check that all files are as recorded; note new times of files whose checksum is right.

    Raises:
        DamagedModel: A file is missing, has another size or another checksum.
    """
    files = tuple(_checked(target.parent, file) for file in record.files)
    if files != record.files:
        with suppress(OSError):  # the directory may be read-only
            write_record(target, replace(record, files=files))


def _checked(base: Path, file: RecordedFile) -> RecordedFile:
    path = base / file.path
    try:
        found = path.stat()
        if found.st_size != file.size:
            raise DamagedModel(f"{path} has {found.st_size:,} bytes and should have {file.size:,}")
        if found.st_mtime_ns != file.mtime_ns and file_sha256(path) != file.sha256:
            raise DamagedModel(f"{path} is not the file that was pulled: its SHA-256 is another one")
    except OSError as error:
        raise DamagedModel(f"{path} cannot be read: {error.strerror}") from None
    return replace(file, mtime_ns=found.st_mtime_ns)


def file_sha256(path: Path, counted: Counted = lambda _: None) -> str:
    """Return the SHA-256 of a file in hexadecimal; `counted` is called with the bytes of each piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            counted(len(piece))
    return digest.hexdigest()
