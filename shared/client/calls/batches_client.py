"""Files and batches for services on the bus, typed."""

from collections.abc import AsyncIterator, Mapping
from typing import Literal, TypeVar

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.client.calls.session_fleet import asking
from shared.messages import (
    BatchCreate,
    BatchesFound,
    BatchFacts,
    BatchQuery,
    FileBytes,
    FileFacts,
    FileJoin,
    FilePut,
    FileQuery,
    FileRead,
    FilesFound,
    Wire,
)
from shared.messages.base import DEFAULT_TENANT
from shared.messages.batches import MAX_JOINED
from shared.subjects import OutsideService

M = TypeVar("M", bound=Wire)
_ROOM = 4096


class BatchesClient:
    """Stores files and runs batches.

    Every call raises `Unavailable` if no gateway answers, and `FileNotFound` or `BatchNotFound` if the tenant
    has no such thing.

    Args:
        bus: The connection.
        caller: The service outside that calls; None: a service of ours.
        tenant: For whom a service of ours calls.
        timeout_s: How long a gateway may take.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        caller: OutsideService | None = None,
        tenant: str = DEFAULT_TENANT,
        timeout_s: float = 10.0,
    ) -> None:
        self._bus = bus
        self._caller = caller
        self._tenant = tenant
        self._timeout_s = timeout_s

    async def put_file(self, data: bytes, filename: str = "file", purpose: str = "batch") -> FileFacts:
        """Stores a file of any size, in pieces if it does not fit into a message."""
        size = self._bus.max_payload - _ROOM
        pieces = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
        if len(pieces) > MAX_JOINED:
            raise ValueError(f"{len(data)} bytes are more than {MAX_JOINED} messages hold")
        stored = []
        for piece in pieces:
            put = FilePut(data=piece, filename=filename, purpose=purpose, tenant=self._tenant)
            stored.append((await self._call("files.put", put, FilesFound)).files[0])
        if len(stored) == 1:
            return stored[0]
        ids = [file.file_id for file in stored]
        join = FileJoin(file_ids=ids, filename=filename, purpose=purpose, tenant=self._tenant)
        return (await self._call("files.join", join, FilesFound)).files[0]

    async def read_file(self, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file."""
        start = 0
        while True:
            read = FileRead(file_id=file_id, start=start, tenant=self._tenant)
            found = await self._call("files.read", read, FileBytes)
            if found.data:
                yield found.data
            start += len(found.data)
            if not found.data or start >= found.file.num_bytes:
                return

    async def files(self, purpose: str = "") -> list[FileFacts]:
        """All files of the tenant, oldest first."""
        files, last = list[FileFacts](), ""
        while True:
            query = FileQuery(action="list", file_id=last, purpose=purpose, tenant=self._tenant)
            page = await self._call("files.query", query, FilesFound)
            files += page.files
            if not page.more:
                return files
            last = files[-1].file_id

    async def delete_file(self, file_id: str) -> None:
        """Deletes a file."""
        query = FileQuery(action="delete", file_id=file_id, tenant=self._tenant)
        await self._call("files.query", query, FilesFound)

    async def create(
        self,
        input_file_id: str,
        endpoint: str = "/v1/chat/completions",
        *,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
    ) -> BatchFacts:
        """Makes a batch of a file."""
        wanted = BatchCreate(
            input_file_id=input_file_id,
            endpoint=endpoint,
            completion_window=completion_window,
            metadata=dict(metadata or {}),
            tenant=self._tenant,
        )
        return (await self._call("batches.create", wanted, BatchesFound)).batches[0]

    async def batch(self, batch_id: str) -> BatchFacts:
        """A batch as it is now."""
        return await self._one("get", batch_id)

    async def cancel(self, batch_id: str) -> BatchFacts:
        """Ends a batch; its files have what was done."""
        return await self._one("cancel", batch_id)

    async def pause(self, batch_id: str) -> BatchFacts:
        """Holds its requests back."""
        return await self._one("pause", batch_id)

    async def resume(self, batch_id: str) -> BatchFacts:
        """Lets it go on."""
        return await self._one("resume", batch_id)

    async def _one(self, action: Literal["get", "cancel", "pause", "resume"], batch_id: str) -> BatchFacts:
        query = BatchQuery(action=action, batch_id=batch_id, tenant=self._tenant)
        return (await self._call("batches.query", query, BatchesFound)).batches[0]

    async def _call(self, name: str, message: Wire, kind: type[M]) -> M:
        subject = subjects.batch_call(name, self._caller)
        with asking("a gateway", "no_gateway"):
            return await call(
                self._bus, subject, message, kind, timeout_s=self._timeout_s, wait_s=self._timeout_s
            )
