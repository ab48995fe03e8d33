"""nats-py's TCP transport, which hands input to a function instead of a task and closes within a bound."""

import asyncio
from collections.abc import Callable, Sequence

from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError

CLOSE_WAIT_S = 1.0
_JOINED = 65_536  # bytes that are copied into one piece; more are handed on as they are

Feed = Callable[[bytes], bytes]


class DirectProtocol(asyncio.StreamReaderProtocol):
    """Gives what arrives to `feed` in the same turn of the loop, and to the reader what `feed` returns.

    Args:
        reader: Gets the rest, the end of the input, and an error of the protocol.
        feed: Takes input, and returns the part of it that is for the reader.
    """

    def __init__(self, reader: asyncio.StreamReader, feed: Feed) -> None:
        super().__init__(reader)
        self._reader = reader
        self._feed = feed
        self._broken = False

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._broken:
            return
        try:
            rest = self._feed(data)
        except ProtocolError as error:
            self._broken = True  # the reader's owner ends the connection
            self._reader.set_exception(error)
            return
        if rest:
            self._reader.feed_data(rest)


class DirectTransport(TcpTransport):  # type: ignore[misc, unused-ignore]
    """nats-py's TCP transport with three more abilities.

    A connection that was cut has bytes that nothing takes, and with TLS a farewell without an answer; nats-py
    waits for both before it connects again.
    """

    def __init__(self, connected: TcpTransport) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.__dict__.update(connected.__dict__)
        self._replaced: asyncio.StreamWriter | None = None  # a writer that is collected closes its transport

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the socket has not taken yet."""
        writer = self._io_writer
        return writer.transport.get_write_buffer_size() if writer is not None else 0

    def write_all(self, parts: Sequence[bytes], size: int) -> None:
        """Writes parts of `size` bytes together in one write."""
        writer = self._io_writer
        assert writer is not None, "must be connected"
        if size <= _JOINED:
            writer.write(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            writer.writelines(parts)

    def read_directly(self, feed: Feed) -> None:
        """Gives all further input to `feed`; see `DirectProtocol`."""
        reader, writer = self._io_reader, self._io_writer
        assert reader is not None, "must be connected"
        assert writer is not None, "must be connected"
        protocol = DirectProtocol(reader, feed)
        writer.transport.set_protocol(protocol)
        self._replaced = writer
        loop = asyncio.get_running_loop()
        self._io_writer = asyncio.StreamWriter(writer.transport, protocol, reader, loop)
        early: bytearray = vars(reader)["_buffer"]  # asyncio has no other way to take it without waiting
        data = bytes(early)
        early.clear()
        if data:
            protocol.data_received(data)

    async def wait_closed(self) -> None:
        """Returns when it is closed, at most `CLOSE_WAIT_S` later."""
        writer = self._io_writer
        if writer is None:
            return
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await asyncio.shield(writer.wait_closed())  # others may wait, too: they share one future
        except TimeoutError:
            for one in (writer, self._bare_io_writer):
                if one is not None:
                    one.transport.abort()
