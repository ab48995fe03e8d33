"""The requests of a batch run with what the key may be used for that made it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from shared import subjects
from shared.bus import Message
from shared.codec import encode
from shared.messages import ModelList
from tests.integration.gateway.batches.test_batches_openai import ended, lines_of, submitted, when
from tests.kits.gateway.batch_stack import BatchGateway, batch_gateway, chat_lines, null_leader
from tests.kits.servers import NatsServer


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[BatchGateway]:
    """A gateway with a leader."""
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    try:
        async with null_leader(server.url), batch_gateway(server.url, tmp_path / "files") as running:
            yield running
    finally:
        server.stop()


async def test_its_requests_have_the_tenant_and_the_models_of_its_key(gateway: BatchGateway) -> None:
    async def list_models(message: Message) -> None:
        await gateway.bus.publish(message.reply, encode(ModelList(models=[])))

    await gateway.bus.subscribe(subjects.MODELS, list_models)
    for models, failed in (([], 0), (["another"], 3)):
        key = await gateway.accounts.add_key("ada", models=models)
        client = gateway.client(key.text)
        batch = await submitted(client, chat_lines(3))
        done = await ended(client, batch.id)
        assert (done.request_counts.completed, done.request_counts.failed) == (3 - failed, failed)
        errors = await lines_of(client, done.error_file_id)
        assert {line["response"]["body"]["error"]["code"] for line in errors} == (
            {"model_not_found"} if failed else set()
        )


async def test_requests_of_a_key_that_is_revoked_are_refused(gateway: BatchGateway) -> None:
    key, other = await gateway.accounts.add_key("ada"), await gateway.accounts.add_key("ada")
    client, reader = gateway.client(key.text), gateway.client(other.text)
    batch = await submitted(client, chat_lines(200, max_tokens=100))
    await when(client, batch.id, lambda found: found.request_counts.completed > 0)
    await gateway.accounts.revoke(key)
    done = await ended(reader, batch.id)
    assert done.status == "completed"
    assert 0 < done.request_counts.failed < 200
    errors = await lines_of(reader, done.error_file_id)
    codes = {line["response"]["body"]["error"]["code"] for line in errors}
    assert codes == {"key_revoked"}
