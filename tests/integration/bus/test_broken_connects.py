"""A connect that fails when the broker has answered already leaves no connection, and tries no more."""

import asyncio

import pytest

from shared.bus.nats import NatsBus
from tests.kits.waiting import until

GREETING = b'INFO {"server_id":"X","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576}\r\n'


class DyingBroker:
    """Answers the ping of a connect, and dies when anything comes after it.

    Attributes:
        accepted: Connections that were made.
        open: Those that their clients have not closed.
    """

    def __init__(self, *, silent: bool) -> None:
        self.accepted = self.open = 0
        self._silent = silent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted, self.open = self.accepted + 1, self.open + 1
        writer.write(GREETING)
        while not (await reader.readline()).startswith(b"PING"):
            pass
        writer.write(b"PONG\r\n")
        if not self._silent:
            await reader.readline()
            writer.write_eof()  # as a process that was killed: the client sees an end, and has to close
        while await reader.read(1000):
            pass
        self.open -= 1
        writer.close()


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_connect_that_fails_leaves_no_connection(silent: bool, cancelled: bool) -> None:
    broker = DyingBroker(silent=silent)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connecting = asyncio.create_task(
        NatsBus.connect(url, name="test", connect_wait_s=20.0 if cancelled else 0.4)
    )
    await until(lambda: broker.accepted > 0)
    await asyncio.sleep(0.1)
    if cancelled:
        connecting.cancel()
    (failed,) = await asyncio.gather(connecting, return_exceptions=True)
    assert isinstance(failed, BaseException)
    await until(lambda: broker.open == 0)
    known = broker.accepted
    await asyncio.sleep(0.5)  # longer than the pauses between the first attempts
    assert (broker.accepted, broker.open) == (known, 0)
    server.close()
