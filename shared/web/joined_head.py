"""Sends the head of a response and the beginning of its body in one write.

uvicorn writes them one after the other, and each write is a system call that wakes the reader.
"""

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "
_CONTINUE = b"HTTP/1.1 100"  # what the client waits for before it sends the body
_JOINED = 65_536  # bytes that are copied into one piece


class JoinedHead:
    """A transport that keeps a head until the next write, at most until the next iteration of the loop.

    A part of a body that begins like a head is kept as well, which does no harm.

    Args:
        transport: Writes; everything else goes to it directly.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`."""
        head = self._head
        if not head and data.startswith(_HEAD) and not data.startswith(_CONTINUE):
            self._head = data
            self._loop.call_soon(self.write_head)
        elif head and len(head) + len(data) <= _JOINED:
            self._head = b""
            self._transport.write(head + data)
        else:
            self.write_head()
            self._transport.write(data)

    def write_head(self) -> None:
        """Writes a head that is kept."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """See `asyncio.BaseTransport`; writes what is kept first."""
        self.write_head()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Returns what the transport has by that name."""
        return getattr(self._transport, name)
