"""One HTTP request while it is answered: what was sent so far, and who may end it early.

The caller leaving and the gateway stopping both end a request by cancelling the task that answers it,
wherever it waits, and turn up there as an ordinary exception with the reason.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.types import Message, Send

from services.gateway.http.errors import Headers, header_value
from services.gateway.http.limits import ClientDisconnected
from services.gateway.http.pieces import send_pieces
from services.gateway.http.readers import Answer, Unread
from shared.client import GenerationStream
from shared.messages import Accepted, SessionOutcome, Usage
from shared.web.protocol import LimitedProtocol

T = TypeVar("T")
_JSON = (b"content-type", b"application/json")


@dataclass(slots=True)
class Outcome:
    """How a call went, for headers, metrics and the log.

    group, accepted: of the first of several generations. session: known at the end of a turn.
    """

    group: str = ""
    accepted: Accepted | None = None
    usages: list[Usage] = field(default_factory=list)
    session: SessionOutcome | None = None
    first_text_s: float = 0.0  # on the loop's clock; 0: none came

    def headers(self) -> Headers:
        """Which group served it, why that one, and where the prompt's KV came from, as far as it is known.

        A group that fetches for long accepts before it has decided; then the usage tells, if it is there yet.
        """
        headers = [(b"x-ryz-group", self.group.encode())]
        if self.accepted is not None and self.accepted.reason:
            headers.append((b"x-ryz-route", header_value(self.accepted.reason)))
        kv = self.accepted.kv if self.accepted is not None else ""
        if not kv and any(usage.fetched_tokens for usage in self.usages):
            kv = "fetch"
        if kv:
            headers.append((b"x-ryz-kv", kv.encode()))
        if told := self._session():
            headers.append((b"x-ryz-session", told.encode()))
        return headers

    def _session(self) -> str:
        """Whether the session is new, and after the turn's end what became of it; empty: not known (yet)."""
        ended = self.session
        if ended is not None:
            reason = f"; reason={ended.reason}" if ended.reason else ""
            replaced = "; replaced" if ended.replaced else ""
            told = f"{ended.state}; turns={ended.turns}; version={ended.version}; {ended.stored}"
            return f"{told}{reason}{replaced}"
        accepted = self.accepted
        if accepted is None or accepted.session_version < 0:
            return ""
        state = "continued" if accepted.session_version else "new"
        return f"{state}; turns={accepted.session_turns + 1}"


class Reply:
    """The answer to one request, in one piece or in many."""

    __slots__ = ("_send", "_time", "bytes_sent", "headers", "status", "streamed", "unsent", "waits_since")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._time = asyncio.get_running_loop().time
        self.unsent = 0  # bytes of the part that is being sent
        # on the loop's clock: when the reader took the last piece of it; 0: none is sent
        self.waits_since = 0.0
        self.headers: Headers = []  # of every answer, also of a refusal
        self.status = 0
        self.streamed = False
        self.bytes_sent = 0

    @property
    def started(self) -> bool:
        """The status is on its way and cannot be changed."""
        return self.status != 0

    def name(self, shown_id: str) -> None:
        """Puts the id that the caller knows the request by into the headers; the last one counts."""
        others = [header for header in self.headers if header[0] != b"x-request-id"]
        self.headers = [(b"x-request-id", shown_id.encode()), *others]

    async def whole(self, status: int, body: bytes, headers: Headers, *, more: bool = False) -> None:
        """A JSON answer. With `more`, the connection waits for `end`."""
        self.status = status
        length = (b"content-length", b"%d" % len(body))
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [_JSON, length, *self.headers, *headers],
            }
        )
        await self.part(body, more=more)

    async def empty(self) -> None:
        """A 204."""
        self.status = 204
        await self._send({"type": "http.response.start", "status": 204, "headers": self.headers})
        await self.end()

    async def start(self, headers: Headers) -> None:
        """The beginning of a 200 that comes in parts."""
        self.status, self.streamed = 200, True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*headers, *self.headers]})

    async def part(self, data: bytes, *, more: bool = True) -> None:
        """The next part, in pieces; waits while the caller does not read, and after the last of several."""
        self.bytes_sent += len(data)
        self.waits_since = self._time()
        try:
            self.unsent = len(data)
            await send_pieces(self._send_piece, data, more=more)
        finally:
            self.unsent, self.waits_since = 0, 0.0

    async def _send_piece(self, message: Message) -> None:
        await self._send(message)
        self.unsent -= len(message["body"])
        self.waits_since = self._time()

    async def end(self) -> None:
        """Nothing more comes."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class Running:
    """The part of a request in which it may be ended early, as an asynchronous context manager.

    connection: where the caller's leaving is heard.
    all_running: has this object as long as it may be aborted from outside.
    limit_s: after it the watcher of readers ends the block; the generations' own deadlines come before.
    tenant, reply, streams: whose it is, what is sent, and what is still to be sent.
    """

    __slots__ = (
        "_all",
        "_connection",
        "_ends_at",
        "_limit_s",
        "_reason",
        "_task",
        "reply",
        "streams",
        "tenant",
    )

    def __init__(
        self,
        connection: LimitedProtocol,
        all_running: set[Answer],
        limit_s: float,
        tenant: str,
        reply: Reply,
    ) -> None:
        self.tenant = tenant
        self.reply = reply
        self.streams: list[GenerationStream] = []
        self._connection = connection
        self._all = all_running
        self._limit_s = limit_s
        self._reason: Exception | None = None

    @property
    def reason(self) -> Exception | None:
        """Why it was ended early; None: it was not."""
        return self._reason

    def unread(self, now_s: float) -> Unread:
        """See `Answer`."""
        reply = self.reply
        waited_s = now_s - reply.waits_since if reply.waits_since else 0.0
        behind = max((stream.behind for stream in self.streams), default=0.0)
        frames = sum(stream.unread for stream in self.streams)
        return Unread(self.tenant, frames + reply.unsent, waited_s, behind, late=now_s >= self._ends_at)

    def abort(self, reason: Exception) -> None:
        """Raises `reason` in the task that is inside the block; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that would leave something behind if it were broken off: its result, also when the request is
        ended early meanwhile, which `check` tells afterwards. Raises what the work raises.
        """
        task = asyncio.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._reason is None:
                task.cancel()
                raise
        try:
            return await task
        except Exception as error:  # there is no one left to be told
            raise asyncio.CancelledError from error

    def check(self) -> None:
        """Raises `CancelledError` if the request was ended early; the block's end makes the reason of it."""
        if self._reason is not None:
            raise asyncio.CancelledError

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._ends_at = asyncio.get_running_loop().time() + self._limit_s
        self._all.add(self)
        self._connection.on_gone = self._leave
        if self._connection.gone:  # while the body was read
            self._leave()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.discard(self)
        self._connection.on_gone = None
        if self._reason is None:
            return
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._reason

    def _leave(self) -> None:
        self.abort(ClientDisconnected())
