"""What our connection adds to nats-py, as far as it can be tested without a server."""

import asyncio

import pytest
from nats.aio.client import Client

from shared.bus.broker.connection import NatsConnection, OnDown
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


async def test_a_connection_that_fails_while_it_closes_is_given_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[bool] = []
    connection = make(lambda *, final: reported.append(final))

    async def fails(self: Client, status: int, do_cbs: bool = True) -> None:
        raise OSError("gone")

    monkeypatch.setattr(Client, "_close", fails)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
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
