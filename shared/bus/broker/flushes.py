"""Asks the broker to confirm that it has read what was written, for as long as the connection lasts."""

import asyncio

import nats.errors

from shared.bus.broker.connection import NatsConnection
from shared.bus.nats_subscriptions import FLUSH_TIMEOUT_S
from shared.bus.subject import broker_away


async def flush_twice(connection: NatsConnection) -> None:
    """Return when the broker has read what was written before.

    nats-py writes its PING ahead of data that waits to be written: the first answer shows that the data is
    written by now, the second one that the broker has read it.
    """
    await connection.flush(FLUSH_TIMEOUT_S)
    await connection.flush(FLUSH_TIMEOUT_S)


class Flushes:
    """The flushes of one bus, which end with the connection that they were begun on."""

    def __init__(self) -> None:
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end_all(self) -> None:
        """End the flushes that wait for an answer: the connection is lost."""
        lost, self._lost = self._lost, asyncio.get_running_loop().create_future()
        lost.set_result(None)

    async def flush(self, connection: NatsConnection) -> bool:
        """Return True when the broker has read what was written, False if the connection was lost.

        Raises:
            Unavailable: The broker did not answer.
        """
        flushing = asyncio.get_running_loop().create_task(flush_twice(connection))
        try:
            await asyncio.wait({flushing, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            flushing.cancel()  # if it is not done
        if not flushing.done():
            return False
        error = flushing.exception()
        if isinstance(error, nats.errors.Error):
            raise broker_away(f"the broker did not answer: {error}") from error
        if error is not None:
            raise error
        return True
