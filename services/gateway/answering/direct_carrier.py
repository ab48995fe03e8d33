"""Carries the parts of an answer from a call to a transport without an HTTP connection."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

PIECE = 65_536  # bytes of an answer that a transport may have waiting


class DirectCarrier:
    """Takes the parts of an answer for a transport; see also `Connection` and `DeliveryProgress`.

    The call waits while more than `PIECE` bytes are not taken, and counts then as one whose reader is slow.

    Attributes:
        started: The caller has the beginning of the answer.
        bytes_sent: Bytes of the answer.
    """

    def __init__(self) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.started = False
        self.unsent = 0
        self.waits_since = 0.0
        self.bytes_sent = 0
        self._parts: list[Any] = []  # that are not taken yet
        self._held = 0  # their bytes
        self._over = False
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    def leave(self) -> None:
        """Tells the call that its caller has left."""
        if self.gone:
            return
        self.gone = True
        self._taken.set()
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()

    async def put(self, parts: Sequence[Any], size: int) -> None:
        """Hands over the next parts; `size` is the bytes of them that count as the answer's."""
        self.started = True
        self.bytes_sent += size
        self._held += size
        self._parts += parts
        self._changed.set()
        if self._held <= PIECE:
            return
        self.unsent, self.waits_since = size, asyncio.get_running_loop().time()
        try:
            while self._held > PIECE and not self.gone:
                self._taken.clear()
                await self._taken.wait()
        finally:
            self.unsent, self.waits_since = 0, 0.0

    async def send_all(self, send: Callable[[Any], Awaitable[None]]) -> None:
        """Sends the parts as they come, until the call has ended; raises what `send` raises."""
        while self._parts or not self._over:
            parts, self._parts, self._held = self._parts, [], 0
            self._taken.set()
            for part in parts:
                await send(part)
            if not self._parts and not self._over:
                self._changed.clear()
                await self._changed.wait()

    def end(self) -> None:
        """Called when the call has ended."""
        self._over = True
        self._changed.set()
