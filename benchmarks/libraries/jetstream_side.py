"""Conditional writes, reading, work and files: our JetStream calls beside nats-py's."""

import io
import itertools
from typing import Any

import nats
from nats.js.api import ConsumerConfig, StreamConfig

from benchmarks.libraries.alternation import alternate
from benchmarks.libraries.broker import broker
from services.gateway.resources.files.object_store import ObjectFiles
from services.gateway.resources.files.store import StoredFile
from shared.bus.jetstream.jetstream import ACK, JetStream
from shared.bus.jetstream.stream_messages import EXPECTED_LAST, stream_config
from shared.bus.nats import NatsBus

MESSAGES, FILE_BYTES, DATA = 1000, 32 * 2**20, bytes(1024)
PART = 128 * 1024


async def measure(rounds: int) -> None:
    """Prints what a write, a read, an item of work and a MiB of a file cost."""
    with broker() as url:
        bus = await NatsBus.connect(url, name="bench")
        client = await nats.connect(url)
        ours, library = JetStream(bus), client.jetstream()
        await ours.ensure_stream(stream_config("OURS", ["ours.>"]))
        await library.add_stream(StreamConfig(name="LIBRARY", subjects=["library.>"], allow_direct=True))
        numbers = itertools.count()

        async def write() -> int:
            for _ in range(MESSAGES):
                await ours.put(f"ours.{next(numbers)}", DATA, expected_last=0)
            return MESSAGES

        async def write_by_library() -> int:
            for _ in range(MESSAGES):
                await library.publish(f"library.{next(numbers)}", DATA, headers={EXPECTED_LAST: "0"})
            return MESSAGES

        async def read() -> int:
            count = after = 0
            while found := await ours.read("OURS", "ours.*", after):
                count, after = count + len(found), found[-1].seq
            return count

        async def read_by_library() -> int:
            count, subscription = 0, await library.subscribe("library.*", ordered_consumer=True)
            while True:
                message = await subscription.next_msg(timeout=5)
                count += 1
                if message.metadata.num_pending == 0:
                    break
            await subscription.unsubscribe()
            return count

        await alternate("a message of 1 KiB written if new", write, write_by_library, rounds=rounds)
        await alternate("a message of 1 KiB read", read, read_by_library, rounds=rounds)
        await _measure_work(ours, library, rounds)
        await _measure_files(ours, library, rounds)
        await ours.stop()
        await bus.close()
        await client.close()


async def _measure_work(ours: JetStream, library: Any, rounds: int) -> None:
    names = itertools.count()

    async def work() -> int:
        name, count = f"ours{next(names)}", 0
        await ours.ensure_consumer("OURS", name, "ours.*", ack_wait_s=30)
        while items := await ours.take("OURS", name, 64):
            for item in items:
                await ours.answer(item, ACK)
            count += len(items)
        await ours.delete_consumer("OURS", name)
        return count

    async def work_by_library() -> int:
        name, count = f"library{next(names)}", 0
        config = ConsumerConfig(durable_name=name, filter_subject="library.*", max_ack_pending=10_000)
        await library.add_consumer("LIBRARY", config)
        subscription = await library.pull_subscribe_bind(name, "LIBRARY")
        left = 1
        while left:
            for message in await subscription.fetch(64, timeout=5):
                await message.ack()
                count, left = count + 1, message.metadata.num_pending
        await subscription.unsubscribe()
        await library.delete_consumer("LIBRARY", name)
        return count

    await alternate("an item taken and acknowledged", work, work_by_library, rounds=rounds)


async def _measure_files(ours: JetStream, library: Any, rounds: int) -> None:
    files, names, content = ObjectFiles(ours), itertools.count(), bytes(FILE_BYTES)
    bucket = await library.create_object_store("library")
    mib = FILE_BYTES // 2**20

    async def keep() -> int:
        writer, file_id = await files.begin("acme"), f"file-{next(names)}"
        for at in range(0, FILE_BYTES, PART):
            await writer.write(content[at : at + PART])
        file = StoredFile(tenant="acme", file_id=file_id, filename="x", purpose="batch",
                          num_bytes=FILE_BYTES, created_s=0)  # fmt: skip
        await writer.commit(file)
        size = 0
        async for part in files.read(file):
            size += len(part)
        assert size == FILE_BYTES
        await files.delete("acme", file_id)
        return mib

    async def keep_by_library() -> int:
        name = f"file-{next(names)}"
        await bucket.put(name, io.BytesIO(content))
        found = await bucket.get(name)
        assert len(found.data) == FILE_BYTES
        await bucket.delete(name)
        return mib

    await alternate("a MiB of a file written and read", keep, keep_by_library, rounds=rounds)
