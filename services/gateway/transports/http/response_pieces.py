"""Sends bodies of responses piece by piece; a piece waits until the reader has taken the one before."""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.types import Message, Scope, Send

from services.gateway.answering.events.slow_readers import OpenAnswer, Unread

PIECE = 65_536  # bytes; the server buffers as many for a connection before it waits for the reader


async def send_pieces(send: Send, data: bytes, *, more: bool) -> None:
    """Sends a part of a body; if it has several pieces, its end waits for the reader, too."""
    if len(data) <= PIECE:
        await send({"type": "http.response.body", "body": data, "more_body": more})
        return
    for start in range(0, len(data), PIECE):
        await send({"type": "http.response.body", "body": data[start : start + PIECE], "more_body": True})
    if not more:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class PieceSender:
    """A `send` for the responses of the framework's routes, an `OpenAnswer` while a reader takes them.

    After `abort` the rest is dropped, and the server closes the connection on the unfinished response.

    Args:
        send: The server's.
        scope: The request's; its state has the party once that is known. Answers without one count together.
        answers: All answers that wait for their readers; has this one while it does.
    """

    __slots__ = ("_answers", "_send", "_state", "_time", "_waiting", "reason", "unsent", "waits_since")

    def __init__(self, send: Send, scope: Scope, answers: set[OpenAnswer]) -> None:
        self._send = send
        self._state: dict[str, Any] = scope.get("state", {})
        self._answers = answers
        self._time = asyncio.get_running_loop().time
        self._waiting: asyncio.Timeout | None = None
        self.reason: Exception | None = None
        self.unsent = 0  # bytes of the body that is being sent
        self.waits_since = 0.0  # on the loop's clock: when the reader took the last piece

    def unread(self, now_s: float) -> Unread:
        """See `OpenAnswer`."""
        return Unread(self._state.get("party", ""), self.unsent, now_s - self.waits_since)

    def abort(self, reason: Exception) -> None:
        """See `OpenAnswer`."""
        self.reason = self.reason or reason
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._time())

    def is_of(self, key_id: str, tenant: str) -> bool:
        """See `OpenAnswer`; what the framework's routes answer is computed already."""
        return False

    async def __call__(self, message: Message) -> None:
        """See ASGI."""
        if self.reason is not None:
            return
        self._answers.add(self)
        try:
            if message["type"] == "http.response.body":
                self.unsent = len(message.get("body", b""))
                more = message.get("more_body", False)
                await send_pieces(self._send_one, message.get("body", b""), more=more)
            else:
                await self._send_one(message)
        finally:
            self.unsent = 0
            self._answers.discard(self)

    async def _send_one(self, message: Message) -> None:
        if self.reason is not None:
            return
        self.waits_since = self._time()
        with suppress(TimeoutError):  # see `abort`
            async with asyncio.timeout(None) as self._waiting:
                await self._send(message)
        self.unsent -= len(message.get("body", b""))
