"""The HTTP response to one request, and what of it was sent so far."""

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from starlette.types import Message, Scope, Send

from services.gateway.admission.errors.refusals import Headers
from services.gateway.answering.events.slow_readers import OpenAnswer, Unread

PIECE = 65_536  # bytes; the server buffers as many for a connection before it waits for the reader
JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")


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


class PlainWriter(Protocol):
    """Writes ordinary answers at once (`plain_writes.py`); each returns False if a message has to be sent."""

    def write_answer(self, send: Send, status: int, headers: Headers, body: bytes) -> bool:
        """Writes a whole answer, whose headers have its length."""

    def write_head(self, send: Send, status: int, headers: Headers) -> bool:
        """Writes the head of an answer that comes in parts."""

    def write_part(self, send: Send, part: bytes, *, more: bool) -> bool:
        """Writes the next part, the last one without `more`."""


class Reply:
    """The response to one request, in one piece or in many.

    Args:
        send: See ASGI.
        plain: Writes ordinary answers at once. None: `send` only.

    Attributes:
        headers: Headers of every response, also of a refusal.
        status: The status that was sent; 0 before that.
        streamed: The response comes in parts.
        bytes_sent: Bytes of the body so far.
        torn: The body ends in the middle of a part, so nothing can follow.
        unsent: Bytes of the part that is being sent.
        waits_since: When the reader took the last piece of that part, on the loop's clock; 0 if no part is
            being sent.
    """

    __slots__ = (
        "_began_s",
        "_plain",
        "_send",
        "_time",
        "bytes_sent",
        "headers",
        "status",
        "streamed",
        "torn",
        "unsent",
        "waits_since",
    )

    def __init__(self, send: Send, plain: PlainWriter | None = None) -> None:
        self._send = send
        self._plain = plain
        self._time = asyncio.get_running_loop().time
        self._began_s = self._time()
        self.unsent = 0
        self.waits_since = 0.0
        self.headers: Headers = []
        self.status = 0
        self.streamed = False
        self.torn = False
        self.bytes_sent = 0

    @property
    def started(self) -> bool:
        """Returns whether the status was sent and cannot be changed."""
        return self.status != 0

    async def send_whole(
        self,
        status: int,
        body: bytes,
        headers: Headers,
        *,
        more: bool = False,
        form: tuple[bytes, bytes] = JSON,
    ) -> None:
        """Sends a response. With `more`, the connection waits for `finish`; `form` is its content type."""
        self.status = status
        length = (b"content-length", b"%d" % len(body))
        head = [form, length, *self.headers, self._took(), *headers]
        plain = None if more or len(body) > PIECE else self._plain
        if plain is not None and plain.write_answer(self._send, status, head, body):
            self.bytes_sent += len(body)
            return
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self.send_part(body, more=more)

    async def send_empty(self) -> None:
        """Sends a 204."""
        self.status = 204
        await self._send({"type": "http.response.start", "status": 204, "headers": self.headers})
        await self.finish()

    async def start_stream(self, headers: Headers) -> None:
        """Sends the head of a 200 that comes in parts."""
        self.status, self.streamed = 200, True
        head = [*headers, *self.headers, self._took()]
        if self._plain is None or not self._plain.write_head(self._send, 200, head):
            await self._send({"type": "http.response.start", "status": 200, "headers": head})

    def _took(self) -> tuple[bytes, bytes]:
        """The header that tells the milliseconds until the answer's head, as OpenAI has it."""
        return b"openai-processing-ms", b"%d" % round((self._time() - self._began_s) * 1000)

    async def send_part(self, data: bytes, *, more: bool = True) -> None:
        """Sends the next part in pieces; waits while the caller does not read, and after several pieces."""
        self.bytes_sent += len(data)
        self.torn = len(data) > PIECE
        if not self.torn and self._plain is not None and self._plain.write_part(self._send, data, more=more):
            return
        self.waits_since = self._time()
        try:
            self.unsent = len(data)
            if self.torn:
                await send_pieces(self._send_piece, data, more=more)
                self.torn = False
            else:
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self.unsent, self.waits_since = 0, 0.0

    async def _send_piece(self, message: Message) -> None:
        await self._send(message)
        self.unsent -= len(message["body"])
        self.waits_since = self._time()

    async def finish(self) -> None:
        """Ends the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
