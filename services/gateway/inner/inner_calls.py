"""Calls the gateway's HTTP routes inside its process, so that all doors have one path.

A call is a request of ASGI whose other side is not a socket: keys, limits, tenants, sessions, resumption and
errors are those of HTTP, since the same code answers. A route waits while its answer is not read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.types import ASGIApp, Message, Scope

from services.gateway.admission.caller import BackgroundCall
from services.gateway.http.response_pieces import PIECE
from services.gateway.http.serving_route import BACKGROUND
from services.gateway.inner.server_sent_events import EventReader, ServerSentEvent
from shared.web.admitted_connection import CONNECTION
from shared.web.limited_protocol import INNER_TENANT

END_S = 10.0  # for which a route that was left may take to end
_JSON = (b"content-type", b"application/json")


class AnswerCut(Exception):
    """The route ended its answer before it was complete, as with a connection that breaks off."""


class InnerConnection:
    """What a route sees in place of a connection.

    Attributes:
        body_arrived: The whole body is there already.
        gone: The caller has left.
        on_gone: Called then, once; set by the request that is answered and reset at its end.
        plain: None: answers come by `send` only.
    """

    plain = None

    def __init__(self) -> None:
        self.body_arrived = True
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self._left = asyncio.Event()

    def leave(self) -> None:
        """Tells the route that its caller has left."""
        if self.gone:
            return
        self.gone = True
        self._left.set()
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()

    async def wait_left(self) -> None:
        """Returns when the caller has left."""
        await self._left.wait()


class InnerAnswer:
    """The answer to a call. Its body can be read once.

    Attributes:
        status: The status of HTTP.
        headers: Of several headers with one name, the last.
        complete: The route has sent the end of the body.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._pieces: deque[bytes] = deque()
        self._held = 0  # bytes of the pieces
        self.complete = False
        self._over = False
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    async def parts(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes; what is there already comes in one part.

        Raises:
            AnswerCut: The route ended before the end of the body.
        """
        while True:
            if self._pieces:
                part = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces.clear()
                self._held = 0
                self._taken.set()
                yield part
            elif self.complete:
                return
            elif self._over:
                raise AnswerCut
            else:
                self._changed.clear()
                await self._changed.wait()

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a streamed answer; raises like `parts`."""
        reader = EventReader()
        async for part in self.parts():
            for event in reader.feed(part):
                yield event

    async def read(self) -> bytes:
        """Returns the whole body; raises like `parts`."""
        return b"".join([part async for part in self.parts()])

    async def wait_head(self) -> None:
        """Returns when the status is known.

        Raises:
            AnswerCut: The route ended without one.
        """
        while not self.status:
            if self._over:
                raise AnswerCut
            self._changed.clear()
            await self._changed.wait()

    async def send(self, message: Message) -> None:
        """The `send` of ASGI, for the route: waits while more than a piece is not read."""
        if message["type"] == "http.response.start":
            self.headers = dict(message.get("headers", ()))
            self.status = message["status"]
        else:
            body: bytes = message.get("body", b"")
            if body:
                self._pieces.append(body)
                self._held += len(body)
            self.complete = not message.get("more_body", False)
        self._changed.set()
        while self._held > PIECE and not self._over:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Called when the route has ended, or its caller has left."""
        self._over = True
        self._changed.set()
        self._taken.set()


class InnerCalls:
    """Makes calls.

    Args:
        app: The gateway's application. The guard against other sites' pages stands before it: doors ask it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def call(
        self,
        path: str,
        body: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]] = (),
        *,
        method: str = "POST",
        query: bytes = b"",
        tenant: str = "",
        client: tuple[str, int] | None = None,
        background: BackgroundCall | None = None,
    ) -> AbstractAsyncContextManager[InnerAnswer]:
        """Makes one call; inside the block, the head of its answer is there.

        Leaving the block before the end of the answer is a client that closes its connection.

        Args:
            path: Of the route, without a query.
            body: The body; JSON unless a header says otherwise.
            headers: With names in lower case, the caller's key among them.
            method: Of HTTP.
            query: What stands after the question mark.
            tenant: On a serving route, whose call it is, in place of a key; empty: the key decides.
            client: Address and port of the caller.
            background: Lets all other calls go first; needs a tenant.

        Raises:
            AnswerCut: The route ended without an answer.
        """
        given = list(headers)
        names = {name for name, _ in given}
        if body and b"content-type" not in names:
            given.append(_JSON)
        if b"content-length" not in names:
            given.append((b"content-length", b"%d" % len(body)))
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query,
            "headers": given,
            "client": client,
            "server": None,
            "state": {},
        }
        if tenant:
            scope[INNER_TENANT] = tenant
        if background is not None:
            scope[BACKGROUND] = background
        return self._run(scope, body)

    @asynccontextmanager
    async def _run(self, scope: Scope, body: bytes) -> AsyncIterator[InnerAnswer]:
        connection, answer = InnerConnection(), InnerAnswer()
        scope[CONNECTION] = connection
        unread = [body]
        del body  # this frame lives as long as the call; the route decides how long it holds the body

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await connection.wait_left()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app(scope, receive, answer.send)
            finally:
                answer.end()

        task = asyncio.create_task(run())
        try:
            try:
                await answer.wait_head()
            except AnswerCut:
                await task  # raises what the route raised
                raise
            yield answer
        finally:
            if not answer.complete:
                connection.leave()
            answer.end()
            await _end(task)


async def _end(task: asyncio.Task[None]) -> None:
    """Waits until a route has freed what it held; its failure shows in the answer, which is cut."""
    await asyncio.wait([task], timeout=END_S)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
