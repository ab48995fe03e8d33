"""Files and batches for services on the bus."""

import asyncio
import os

import pytest

from shared import subjects
from shared.bus import RequestTimedOut
from shared.bus.accounts import inbox_prefix
from shared.bus.nats import NatsBus
from shared.client.calls.batches_client import BatchesClient
from shared.codec import decode, encode
from shared.errors import BatchNotFound, FileNotFound, InvalidRequest
from shared.messages import FileQuery, FilesFound
from shared.subjects import OutsideService
from tests.kits.gateway.batch_stack import BatchGateway, chat_lines
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S


async def test_a_service_outside_runs_a_batch(gateway: BatchGateway, broker: NatsServer) -> None:
    bus = await NatsBus.connect(broker.url, name="outside", inbox=inbox_prefix("billing"))
    mine = BatchesClient(bus, caller=OutsideService("acme", "billing"))
    theirs = BatchesClient(bus, caller=OutsideService("other", "billing"))
    try:
        file = await mine.put_file(chat_lines(20), "in.jsonl")
        assert [one.file_id for one in await mine.files()] == [file.file_id]
        assert await theirs.files() == []
        batch = await mine.create(file.file_id, metadata={"a": "b"})
        assert (batch.state, batch.metadata) == ("validating", {"a": "b"})
        with pytest.raises(BatchNotFound):
            await theirs.batch(batch.batch_id)
        await mine.pause(batch.batch_id)
        assert (await mine.resume(batch.batch_id)).paused is False
        async with asyncio.timeout(PATIENCE_S):
            while batch.state != "completed":
                await asyncio.sleep(0.05)
                batch = await mine.batch(batch.batch_id)
        assert (batch.total, batch.completed) == (20, 20)
        data = b"".join([part async for part in mine.read_file(batch.output_file_id)])
        assert data.count(b"\n") == 20
        assert (await mine.cancel(batch.batch_id)).state == "completed"  # it has ended
        await mine.delete_file(file.file_id)
        with pytest.raises(FileNotFound):
            await mine.create(file.file_id)
        with pytest.raises(InvalidRequest, match="endpoint"):
            await mine.create(batch.output_file_id, "/v1/nonsense")
    finally:
        await bus.close()


async def test_answers_go_to_the_inbox_of_the_caller_alone(gateway: BatchGateway, broker: NatsServer) -> None:
    """A user outside cannot have answers sent into the inbox of another one."""
    bus = await NatsBus.connect(broker.url, name="outside", inbox=inbox_prefix("victim"))
    try:
        query = encode(FileQuery(action="list"))
        for user, answered in (("billing", False), ("victim", True)):
            subject = subjects.batch_call("files.query", OutsideService("acme", user))
            asked = bus.request(subject, query, timeout_s=0.5 if not answered else 5.0)
            if answered:
                assert decode((await asked).data, FilesFound).files == []
            else:
                with pytest.raises(RequestTimedOut):
                    await asked
    finally:
        await bus.close()


async def test_a_file_of_several_messages(gateway: BatchGateway, broker: NatsServer) -> None:
    bus = await NatsBus.connect(broker.url, name="outside")
    mine = BatchesClient(bus, tenant="acme")
    try:
        data = os.urandom(2_500_000)
        file = await mine.put_file(data, "big", "user_data")
        assert b"".join([part async for part in mine.read_file(file.file_id)]) == data
        assert [one.num_bytes for one in await mine.files()] == [len(data)]
    finally:
        await bus.close()
