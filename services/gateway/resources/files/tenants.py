"""Adds, lists, reads and deletes the files of tenants within their limits, over any store."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass

from services.gateway.resources.files.store import FileStore, StoredFile, new_file_id
from shared.errors import FileNotFound, InvalidRequest, RateLimited, RequestTooLarge

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MAX_NAME = 255
DAY_S = 86_400


def no_days(tenant: str, purpose: str) -> int:
    """For a gateway that knows of no tenants with times of their own."""
    return 0


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of files.

    Attributes:
        num_bytes: Of one file.
        files: Of one tenant.
        tenant_bytes: Of one tenant's files together.
    """

    num_bytes: int
    files: int
    tenant_bytes: int


@dataclass(slots=True)
class NewFile:
    """Upload metadata from the client; complete when all parts have been read."""

    filename: str = "file"
    purpose: str = ""
    expires_after_s: int = 0


class TenantFiles:
    """Adds, lists, reads and deletes files of tenants.

    Args:
        store: Where the bytes and the metadata are.
        limits: Of size and number.
        days_of: How many days files of a tenant with a purpose are kept; 0: as each of them says.
    """

    def __init__(
        self, store: FileStore, limits: FileLimits, days_of: Callable[[str, str], int] = no_days
    ) -> None:
        self.store = store
        self.limits = limits
        self._days_of = days_of

    async def add(self, tenant: str, new: NewFile, parts: AsyncIterable[bytes]) -> StoredFile:
        """Stores a file.

        Args:
            tenant: The owner of the file.
            new: Upload metadata, complete after the last part.
            parts: Its bytes.

        Raises:
            InvalidRequest: The purpose is none of `PURPOSES`.
            RequestTooLarge: It is over the limit.
            RateLimited: The tenant has as many files, or bytes of them, as it may have.
        """
        room = await self._room(tenant)
        writer = await self.store.begin(tenant)
        try:
            size = 0
            async for part in parts:
                size += len(part)
                self._check_size(size, room)
                await writer.write(part)
            _check(new)
            now_s = int(time.time())
            expires_s = self.ends_s(tenant, new.purpose, now_s, new.expires_after_s)
            file = StoredFile(
                file_id=new_file_id(),
                tenant=tenant,
                filename=new.filename[:MAX_NAME],
                purpose=new.purpose,
                num_bytes=size,
                created_s=now_s,
                expires_s=expires_s,
            )
            await writer.commit(file)
        finally:
            await writer.abort()
        return file

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        """A file; raises `FileNotFound`."""
        file = await self.store.get(tenant, file_id) if _may_be(file_id) else None
        if file is None:
            raise _no_file(file_id)
        if self._is_over(file):
            await self.store.delete(tenant, file_id)
            raise _no_file(file_id)
        return file

    async def files_of(self, tenant: str, purpose: str = "") -> list[StoredFile]:
        """The files of a tenant, oldest first; those whose time is over go."""
        kept = []
        for file in await self.store.files_of(tenant):
            if self._is_over(file):
                await self.store.delete(tenant, file.file_id)
            elif not purpose or file.purpose == purpose:
                kept.append(file)
        return kept

    async def delete(self, tenant: str, file_id: str) -> None:
        """Deletes a file; raises `FileNotFound`."""
        if not (_may_be(file_id) and await self.store.delete(tenant, file_id)):
            raise _no_file(file_id)

    def read(self, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """See `FileStore.read`."""
        return self.store.read(file, start)

    def ends_s(self, tenant: str, purpose: str, made_s: int, after_s: int = 0) -> int:
        """When a file goes: after the tenant's days, or before if it came with a shorter time; 0: never."""
        ends = [made_s + days * DAY_S] if (days := self._days_of(tenant, purpose)) else []
        return min([*ends, made_s + after_s] if after_s else ends, default=0)

    def _is_over(self, file: StoredFile) -> bool:
        ends = file.expires_s, self.ends_s(file.tenant, file.purpose, file.created_s)
        return any(0 < end <= time.time() for end in ends)

    async def _room(self, tenant: str) -> int:
        """The bytes that the tenant may still store."""
        files = await self.files_of(tenant)
        room = self.limits.tenant_bytes - sum(file.num_bytes for file in files)
        if len(files) >= self.limits.files or room <= 0:
            raise RateLimited(
                f"the tenant has {len(files)} files of {self.limits.tenant_bytes - room} bytes together, and "
                f"may have {self.limits.files} (RYZ_FILES_MAX_PER_TENANT) of {self.limits.tenant_bytes} "
                "bytes (RYZ_FILES_BYTES_PER_TENANT): delete some",
                reason="file_quota",
            )
        return room

    def _check_size(self, size: int, room: int) -> None:
        if size > self.limits.num_bytes:
            raise RequestTooLarge(
                f"the file has {size} bytes or more and may have {self.limits.num_bytes} "
                "(RYZ_FILE_MAX_BYTES)",
                reason="file_size",
            )
        if size > room:
            raise RateLimited(
                f"the tenant may store {room} bytes more (RYZ_FILES_BYTES_PER_TENANT), and the file has "
                "more: delete some files",
                reason="file_quota",
            )


def _check(new: NewFile) -> None:
    if new.purpose not in PURPOSES:
        raise InvalidRequest(
            f"`purpose` is one of {', '.join(PURPOSES)}, got {new.purpose[:64]!r}", param="purpose"
        )


def _may_be(file_id: str) -> bool:
    return file_id.startswith("file-") and file_id.removeprefix("file-").isalnum() and len(file_id) <= 64


def _no_file(file_id: str) -> FileNotFound:
    return FileNotFound(f"no file {file_id[:64]!r}: it was deleted or has expired", file_id=file_id[:64])
