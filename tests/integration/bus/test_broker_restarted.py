"""A broker that is killed and started again while a subscription or a flush waits for its answer."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.errors import Unavailable
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S, until


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop(kill=True)


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(server.url, name="test", connect_wait_s=PATIENCE_S)
    yield bus
    await bus.close()


async def freeze(server: NatsServer) -> None:
    """Have the broker answer nothing from here on."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    # its threads stop when the first of them gets a core and takes the signal
    threads = [psutil.Process(thread.id) for thread in psutil.Process(server.process.pid).threads()]
    await until(lambda: all(thread.status() == psutil.STATUS_STOPPED for thread in threads))


async def test_a_subscription_that_was_being_made_is_made_at_the_next_broker(
    server: NatsServer, bus: NatsBus
) -> None:
    heard: list[bytes] = []

    async def handle(message: Message) -> None:
        heard.append(message.data)

    await freeze(server)
    subscribing = asyncio.create_task(bus.subscribe("news", handle))
    await asyncio.sleep(0.05)  # it waits for the broker's answer; if not yet, it meets the end sooner
    assert not subscribing.done()
    server.stop(kill=True)
    await until(lambda: not bus.connected)
    await asyncio.to_thread(server.start)
    subscription = await subscribing
    await bus.publish("news", b"1")
    await until(lambda: heard == [b"1"])
    await subscription.unsubscribe()


async def test_a_flush_fails_as_soon_as_the_connection_is_lost(server: NatsServer, bus: NatsBus) -> None:
    """What was published before may have been lost with it."""
    await freeze(server)
    flushing = asyncio.create_task(bus.flush())
    await asyncio.sleep(0.05)
    assert not flushing.done()
    server.stop(kill=True)
    with pytest.raises(Unavailable, match="the connection to the broker was lost"):
        await flushing


async def test_a_subscription_that_cannot_be_made_leaves_nothing(server: NatsServer) -> None:
    bus = await NatsBus.connect(server.url, name="test", connect_wait_s=0.3)

    async def handle(_: Message) -> None: ...

    await freeze(server)
    subscribing = asyncio.create_task(bus.subscribe("news", handle))
    await asyncio.sleep(0.05)
    server.stop(kill=True)
    with pytest.raises(Unavailable, match=r"no connection to the broker for 0\.3 s"):
        await subscribing
    assert bus.served == []
    await bus.close()
