"""nats-py's TCP transport with an end that comes: closing waits for the other side, but not for long.

A connection that was cut has bytes that nobody takes, and with TLS a farewell that nobody answers; nats-py
waits for both before it connects again.
"""

import asyncio

from nats.aio.transport import TcpTransport

CLOSE_WAIT_S = 1.0


class BoundedTransport(TcpTransport):  # type: ignore[misc, unused-ignore]
    """Gives up a connection that cannot be closed in order."""

    def __init__(self, connected: TcpTransport) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.__dict__.update(connected.__dict__)

    async def wait_closed(self) -> None:
        """Returns when it is closed, at most `CLOSE_WAIT_S` later."""
        writer = self._io_writer
        if writer is None:
            return
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await writer.wait_closed()
        except TimeoutError:
            for one in (writer, self._bare_io_writer):
                if one is not None:
                    one.transport.abort()
