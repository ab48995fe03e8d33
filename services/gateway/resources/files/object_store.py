"""Files in NATS's object store, in the published format of its buckets, so that `nats object` reads them.

A bucket is a stream: the pieces of a file under one subject, what is known of it under another. The second is
written last.
"""

import base64
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from services.gateway.resources.files.store import PART_BYTES, StoredFile
from shared.bus.jetstream.errors import NoStream
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import StoredMessage, stream_config
from shared.errors import FileNotFound
from shared.streams import FILES_BUCKET, FILES_STREAM, file_known, file_pieces

_ROLLUP = {"Nats-Rollup": "sub"}  # the message replaces all earlier ones under its subject


class ObjectFiles:
    """Implements `FileStore`.

    Args:
        jetstream: The broker's.
    """

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream

    async def begin(self, tenant: str) -> "ObjectWriter":
        """See `FileStore`."""
        await self._jetstream.ensure_stream(
            stream_config(FILES_STREAM, [file_pieces("*"), file_known("*")], allow_rollup_hdrs=True)
        )
        return ObjectWriter(self._jetstream)

    async def get(self, tenant: str, file_id: str) -> StoredFile | None:
        """See `FileStore`."""
        found = await self._known(tenant, file_id)
        return _file_of(found) if found else None

    async def files_of(self, tenant: str) -> list[StoredFile]:
        """See `FileStore`."""
        files, after = list[StoredFile](), 0
        try:
            while messages := await self._jetstream.read(FILES_STREAM, file_known("*"), after):
                after = messages[-1].seq
                found = (_file_of(_info(message)) for message in messages)
                files += [file for file in found if file is not None and file.tenant == tenant]
        except NoStream:
            return []
        return sorted(files, key=lambda one: (one.created_s, one.file_id))

    async def delete(self, tenant: str, file_id: str) -> bool:
        """See `FileStore`."""
        found = await self._known(tenant, file_id)
        if found is None:
            return False
        await self._jetstream.purge(FILES_STREAM, file_known(_encoded(tenant, file_id)))
        await self._jetstream.purge(FILES_STREAM, file_pieces(found["nuid"]))
        return True

    async def read(self, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """See `FileStore`."""
        found = await self._known(file.tenant, file.file_id)
        if found is None:
            raise FileNotFound(f"file {file.file_id!r} was deleted", file_id=file.file_id)
        after, skip = 0, start
        while messages := await self._jetstream.read(FILES_STREAM, file_pieces(found["nuid"]), after, 16):
            after = messages[-1].seq
            for message in messages:
                if skip < len(message.data):
                    yield message.data[skip:]
                skip = max(0, skip - len(message.data))

    async def _known(self, tenant: str, file_id: str) -> dict[str, Any] | None:
        message = await self._jetstream.last(FILES_STREAM, file_known(_encoded(tenant, file_id)))
        return _info(message) if message else None


class ObjectWriter:
    """Implements `FileWriter`.

    Args:
        jetstream: The broker's.
    """

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._nuid = os.urandom(11).hex()
        self._rest = bytearray()
        self._digest = hashlib.sha256()
        self._pieces = 0
        self._done = False

    async def write(self, part: bytes) -> None:
        """See `FileWriter`."""
        self._digest.update(part)
        self._rest += part
        while len(self._rest) >= PART_BYTES:
            await self._send(PART_BYTES)

    async def commit(self, file: StoredFile) -> None:
        """See `FileWriter`."""
        if self._rest:
            await self._send(len(self._rest))
        name = _encoded(file.tenant, file.file_id)
        before = await self._jetstream.last(FILES_STREAM, file_known(name))
        info = {
            "name": f"{file.tenant}/{file.file_id}",
            "bucket": FILES_BUCKET,
            "nuid": self._nuid,
            "size": file.num_bytes,
            "mtime": datetime.now(UTC).isoformat(),
            "chunks": self._pieces,
            "digest": "SHA-256=" + base64.urlsafe_b64encode(self._digest.digest()).decode(),
            "metadata": {"file": msgspec.json.encode(file).decode()},
            "options": {"max_chunk_size": PART_BYTES},
        }
        await self._jetstream.put(file_known(name), msgspec.json.encode(info), headers=_ROLLUP)
        self._done = True
        if before is not None:
            await self._jetstream.purge(FILES_STREAM, file_pieces(_info(before)["nuid"]))

    async def abort(self) -> None:
        """See `FileWriter`."""
        if not self._done:
            self._done = True
            await self._jetstream.purge(FILES_STREAM, file_pieces(self._nuid))

    async def _send(self, count: int) -> None:
        await self._jetstream.put(file_pieces(self._nuid), bytes(self._rest[:count]))
        del self._rest[:count]
        self._pieces += 1


def _encoded(tenant: str, file_id: str) -> str:
    return base64.urlsafe_b64encode(f"{tenant}/{file_id}".encode()).decode()


def _info(message: StoredMessage) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(message.data)
    return found


def _file_of(info: dict[str, Any]) -> StoredFile | None:
    known = info.get("metadata", {}).get("file", "")
    return msgspec.json.decode(known, type=StoredFile) if known else None
