"""A broker with JetStream, and a gateway with a leader on it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kits.gateway.batch_stack import BatchGateway, batch_gateway, null_leader
from tests.kits.servers import NatsServer


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    """A broker with JetStream, of this test alone."""
    server = NatsServer(tmp_path, tmp_path / "streams")
    server.start()
    yield server
    if server.process is not None:
        server.stop()


@pytest_asyncio.fixture
async def gateway(broker: NatsServer, tmp_path: Path) -> AsyncIterator[BatchGateway]:
    """A gateway with a leader."""
    async with null_leader(broker.url), batch_gateway(broker.url, tmp_path / "files") as running:
        yield running
