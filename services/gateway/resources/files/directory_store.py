"""Files in a directory: for each the bytes, and beside them what is known of it, in JSON.

The second is written last and removed first, so it decides whether there is a file. Several gateways may
share the directory: names are unique, and files appear whole.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import msgspec

from services.gateway.resources.files.store import PART_BYTES, StoredFile
from shared.errors import FileNotFound, Unavailable

P = ParamSpec("P")
T = TypeVar("T")
LEFT_S = 24 * 3600  # after which an unfinished file is one that its gateway left
_PART, _META = ".part", ".json"


class DirectoryFiles:
    """Implements `FileStore`.

    Args:
        root: The directory; it is made when the first file comes, for this user only.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def begin(self, tenant: str) -> "DirectoryWriter":
        """See `FileStore`."""
        return await self._run(self._begin, tenant)

    async def get(self, tenant: str, file_id: str) -> StoredFile | None:
        """See `FileStore`."""
        return await self._run(self._get, self._folder(tenant) / f"{file_id}{_META}")

    async def files_of(self, tenant: str) -> list[StoredFile]:
        """See `FileStore`."""
        return await self._run(self._list, self._folder(tenant))

    async def delete(self, tenant: str, file_id: str) -> bool:
        """See `FileStore`."""
        return await self._run(self._delete, self._folder(tenant) / file_id)

    async def read(self, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """See `FileStore`."""
        opened = await self._run(self._open, file, start)
        try:
            while part := await asyncio.to_thread(opened.read, PART_BYTES):
                yield part
        finally:
            opened.close()

    async def _run(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Runs work on the disk in a thread; its failures are those of the store."""
        try:
            return await asyncio.to_thread(work, *given, **named)
        except OSError as error:
            raise _unusable(self._root, error) from error

    def _folder(self, tenant: str) -> Path:
        return self._root / tenant

    def _begin(self, tenant: str) -> "DirectoryWriter":
        folder = self._folder(tenant)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(folder)
        return DirectoryWriter(folder)

    def _get(self, path: Path) -> StoredFile | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredFile)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _list(self, folder: Path) -> list[StoredFile]:
        with suppress(FileNotFoundError):
            found = (self._get(path) for path in folder.glob(f"file-*{_META}"))
            return sorted((one for one in found if one), key=lambda one: (one.created_s, one.file_id))
        return []

    def _delete(self, path: Path) -> bool:
        try:
            path.with_name(path.name + _META).unlink()
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return True

    def _open(self, file: StoredFile, start: int) -> IO[bytes]:
        try:
            opened = (self._folder(file.tenant) / file.file_id).open("rb")
        except FileNotFoundError:
            raise FileNotFound(f"file {file.file_id!r} was deleted", file_id=file.file_id) from None
        opened.seek(start)
        return opened


class DirectoryWriter:
    """Implements `FileWriter`.

    Args:
        folder: The tenant's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._part = folder / f".{os.urandom(8).hex()}{_PART}"
        self._file: IO[bytes] | None = os.fdopen(
            os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        )

    async def write(self, part: bytes) -> None:
        """See `FileWriter`."""
        assert self._file is not None
        try:
            await asyncio.to_thread(self._file.write, part)
        except OSError as error:
            raise _unusable(self._folder.parent, error) from error

    async def commit(self, file: StoredFile) -> None:
        """See `FileWriter`."""
        try:
            await asyncio.to_thread(self._commit, file)
        except OSError as error:
            raise _unusable(self._folder.parent, error) from error

    async def abort(self) -> None:
        """See `FileWriter`."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
            self._part.unlink(missing_ok=True)

    def _commit(self, file: StoredFile) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._folder / file.file_id
        self._part.replace(path)
        self._file = None
        known = self._folder / f".{os.urandom(8).hex()}{_PART}"
        known.write_bytes(msgspec.json.encode(file))
        known.replace(path.with_name(path.name + _META))


def _sweep(folder: Path) -> None:
    """Removes unfinished files that a gateway left when it died."""
    for path in folder.glob(f".*{_PART}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_S:
                path.unlink()


def _unusable(root: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"the directory of files {root} cannot be used: {error.strerror or error}; make room, or name "
        "another in RYZ_FILES_DIR",
        reason="file_store",
    )
