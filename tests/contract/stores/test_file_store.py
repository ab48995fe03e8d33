"""The same of every store of files: whole or not there, by tenant, from any place on."""

from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from services.gateway.resources.files.directory_store import DirectoryFiles
from services.gateway.resources.files.object_store import ObjectFiles
from services.gateway.resources.files.store import FileStore, StoredFile
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.errors import FileNotFound
from shared.streams import FILES_BUCKET
from tests.kits.servers import NatsServer

DATA = bytes(range(256)) * 2000  # several pieces, the last one short


@pytest_asyncio.fixture(params=["directory", "nats"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FileStore]:
    if request.param == "directory":
        yield DirectoryFiles(tmp_path / "files")
        return
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    bus = await NatsBus.connect(server.url, name="files")
    jetstream = JetStream(bus)
    yield ObjectFiles(jetstream)
    await jetstream.stop()
    await bus.close()
    server.stop()


def file_of(tenant: str, name: str, size: int = len(DATA)) -> StoredFile:
    return StoredFile(
        file_id=name, tenant=tenant, filename="a", purpose="batch", num_bytes=size, created_s=int(name[-1])
    )


async def write(store: FileStore, file: StoredFile, data: bytes = DATA) -> None:
    writer = await store.begin(file.tenant)
    for start in range(0, len(data), 100_000):
        await writer.write(data[start : start + 100_000])
    await writer.commit(file)
    await writer.abort()


async def read(store: FileStore, file: StoredFile, start: int = 0) -> bytes:
    return b"".join([part async for part in store.read(file, start)])


async def test_what_was_written_is_read(store: FileStore) -> None:
    assert await store.files_of("a") == []
    assert await store.get("a", "file-1") is None
    one, two, other = file_of("a", "file-1"), file_of("a", "file-2"), file_of("b", "file-1")
    await write(store, two)
    await write(store, one)
    await write(store, other, b"x")
    assert await store.files_of("a") == [one, two]
    assert await store.get("a", "file-1") == one
    assert await store.get("b", "file-1") == other
    assert await read(store, one) == DATA
    assert await read(store, one, 300_001) == DATA[300_001:]
    assert await read(store, other) == b"x"


async def test_a_file_replaces_an_earlier_one(store: FileStore) -> None:
    file = file_of("a", "file-1")
    await write(store, file)
    await write(store, file_of("a", "file-1", 3), b"new")
    assert await read(store, file) == b"new"
    assert len(await store.files_of("a")) == 1


async def test_what_is_not_committed_is_not_there(store: FileStore) -> None:
    writer = await store.begin("a")
    await writer.write(DATA)
    assert await store.files_of("a") == []
    await writer.abort()
    assert await store.files_of("a") == []


async def test_what_is_deleted_is_gone(store: FileStore) -> None:
    file = file_of("a", "file-1")
    await write(store, file)
    assert await store.delete("a", "file-1")
    assert not await store.delete("a", "file-1")
    assert await store.files_of("a") == []
    with pytest.raises(FileNotFound):
        await read(store, file)


async def test_files_in_the_broker_are_objects_to_nats_py(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    bus = await NatsBus.connect(server.url, name="files")
    jetstream = JetStream(bus)
    files = ObjectFiles(jetstream)
    await write(files, file_of("a", "file-1", 5), b"older")
    await write(files, file_of("a", "file-1"))
    await write(files, file_of("b", "file-2", 0), b"")

    client = await nats.connect(server.url)
    bucket = await client.jetstream().object_store(FILES_BUCKET)
    found = await bucket.get("a/file-1")  # raises if the digest does not fit
    assert found.data == DATA
    assert (found.info.size, found.info.bucket) == (len(DATA), FILES_BUCKET)
    assert [(one.name, one.size) for one in await bucket.list()] == [("a/file-1", len(DATA)), ("b/file-2", 0)]
    await client.close()
    await jetstream.stop()
    await bus.close()
    server.stop()
