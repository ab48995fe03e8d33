"""What our connection adds to nats-py, as far as it can be tested without a server."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import urlparse

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from shared.bus.broker.connection import NatsConnection, OnDown
from shared.bus.broker.direct_transport import DirectTransport
from shared.bus.broker_address import BrokerAddress
from shared.bus.delivery import BusStats
from shared.flow.backoff import Backoff


def make(on_down: OnDown = lambda *, final: None) -> NatsConnection:
    return NatsConnection(
        BrokerAddress("nats://127.0.0.1:4222"),
        BusStats(),
        Backoff(),
        on_up=lambda: None,
        on_down=on_down,
    )


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OSError("gone"), pytest.raises(OSError, match="gone")),
        (ConnectionResetError("lost while the last bytes were sent"), nullcontext()),
    ],
)
async def test_a_connection_that_fails_while_it_closes_is_given_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: OSError, outcome: AbstractContextManager[object]
) -> None:
    reported: list[bool] = []
    connection = make(lambda *, final: reported.append(final))

    async def fails(self: Client, status: int, do_cbs: bool = True) -> None:
        raise error

    monkeypatch.setattr(Client, "_close", fails)
    for _ in range(2):
        with outcome:
            await connection._close(Client.CLOSED)
    assert reported == [True]


async def test_a_cancellation_while_a_slow_broker_is_waited_for_is_not_lost() -> None:
    connection = make()
    taken = asyncio.Event()

    class SlowTransport:
        async def drain(self) -> None:
            await taken.wait()

    connection._status, connection._transport = Client.CONNECTED, SlowTransport()  # type: ignore[assignment]
    waiting = asyncio.create_task(connection._flush_pending(force_flush=True))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_task_that_gives_up_waiting_for_the_end_takes_no_other_along() -> None:
    """All that wait for the end of a connection wait for one future of asyncio's."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connected = TcpTransport()  # type: ignore[no-untyped-call, unused-ignore]
    await connected.connect(urlparse(f"nats://127.0.0.1:{port}"), 32_768, 5)
    transport = DirectTransport(connected)
    first = asyncio.create_task(transport.wait_closed())
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait({first})
    transport.close()  # type: ignore[no-untyped-call, unused-ignore]
    await transport.wait_closed()
    server.close()


class _ClosedTransport:
    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")


class _ClosedConnection(NatsConnection):
    """Its transport has closed, and the read loop has not heard of it."""

    async def ping(self) -> None:
        self._status, self._transport = Client.CONNECTED, _ClosedTransport()  # type: ignore[assignment]
        await self._send_ping()


async def test_a_flush_over_a_transport_that_has_closed_is_an_error_of_the_connection() -> None:
    """uvloop refuses to write there with a `RuntimeError`."""
    connection = _ClosedConnection(
        BrokerAddress("nats://127.0.0.1:4222"),
        BusStats(),
        Backoff(),
        on_up=lambda: None,
        on_down=lambda *, final: None,
    )
    with pytest.raises(nats.errors.ConnectionClosedError):
        await connection.ping()
