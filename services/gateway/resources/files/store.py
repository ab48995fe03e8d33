"""The contract of a store of files, and what is known of a file.

`files/directory_store.py` keeps them in a directory, `files/object_store.py` in NATS's object store.
"""

import os
from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

import msgspec

PART_BYTES = 128 * 1024  # of what is read and written at once
OUTPUT = "batch_output"  # the purpose of files that batches write
Purpose = Literal["assistants", "batch", "batch_output", "evals", "fine-tune", "user_data", "vision"]


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a file; it never changes.

    Attributes:
        file_id: Its id.
        tenant: Whose it is.
        filename: Its name, as its owner gave it.
        purpose: What it is for.
        num_bytes: Its size.
        created_s: When it was stored, in seconds since 1970.
        expires_s: When it goes; 0: never.
    """

    file_id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_s: int
    expires_s: int = 0

    def as_openai(self) -> dict[str, Any]:
        """The file object of OpenAI's API."""
        shown: dict[str, Any] = {
            "id": self.file_id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_s,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }
        return shown | ({"expires_at": self.expires_s} if self.expires_s else {})


class FileWriter(Protocol):
    """Takes the bytes of a file; nothing of it is seen before `commit`."""

    async def write(self, part: bytes) -> None:
        """Takes the next bytes."""
        ...

    async def commit(self, file: StoredFile) -> None:
        """Makes the file visible, whole, in place of an earlier one with its id."""
        ...

    async def abort(self) -> None:
        """Removes what was written; after `commit` it does nothing."""
        ...


class FileStore(Protocol):
    """Stores files. Every method raises `Unavailable` if the place cannot be used (reason `file_store`)."""

    async def begin(self, tenant: str) -> FileWriter:
        """Begins a new file."""
        ...

    async def get(self, tenant: str, file_id: str) -> StoredFile | None:
        """A file of a tenant."""
        ...

    async def files_of(self, tenant: str) -> list[StoredFile]:
        """All files of a tenant, oldest first."""
        ...

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Removes a file; returns whether it was there."""
        ...

    def read(self, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on; raises `FileNotFound` if it was deleted meanwhile."""
        ...


def new_file_id() -> str:
    """A new id: 96 random bits."""
    return f"file-{os.urandom(12).hex()}"
