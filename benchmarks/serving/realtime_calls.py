"""Requests of the load generator over WebSockets, four on each; answers are checked like those of HTTP."""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.serving.answers import judge_completion, judge_stream
from benchmarks.serving.connection import LoadTarget, Recorder
from benchmarks.serving.request_loop import RequestLoop
from benchmarks.serving.requests import NumberedRequests, http_requests

PER_SOCKET = 4
_ENDS = {b"done": 200, b"answer": 200, b"error": 500, b"cut": 500}


class SharedSocket:
    """One WebSocket, opened by the first request on it.

    Attributes:
        inboxes: Where messages go, by the request that they belong to; an empty one says that none will come.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._lock = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self.inboxes: dict[bytes, asyncio.Queue[bytes]] = {}

    async def send(self, text: bytes) -> None:
        """Send a message."""
        async with self._lock:
            if self._socket is None:
                self._socket = await connect(
                    self._url, max_size=None, compression=None, additional_headers=self._headers
                )
                self._reading = asyncio.create_task(self._read(self._socket))
        await self._socket.send(text, text=True)

    async def close(self) -> None:
        """Close the connection; may be called again."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._socket is not None:
            self._socket.transport.abort()

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                message = await socket.recv(decode=False)
                name = message.partition(b'"id":"')[2].partition(b'"')[0]
                if name in self.inboxes:  # else it greets
                    self.inboxes[name].put_nowait(message)
        except WebSocketException:
            self._socket = None
            for inbox in self.inboxes.values():
                inbox.put_nowait(b"")


class RealtimeLoop(RequestLoop):
    """Sends requests on a WebSocket that others use, too."""

    def __init__(
        self, socket: SharedSocket, target: LoadTarget, requests: NumberedRequests, recorder: Recorder
    ) -> None:
        super().__init__(target, recorder)
        self._socket = socket
        self._requests = requests
        self._name = b"n%d" % len(socket.inboxes)
        self._inbox = socket.inboxes[self._name] = asyncio.Queue[bytes]()

    async def close(self) -> None:
        """End, whatever it waits for."""
        await super().close()
        await self._socket.close()

    async def _ask(self) -> str:
        try:
            self.idle.clear()
            await self._ask_once()
        except (OSError, WebSocketException) as error:
            return f"the WebSocket failed: {error}"
        return ""

    async def _ask_once(self) -> None:
        body = self._requests.next().partition(b"\r\n\r\n")[2]
        began, first, parts = perf_counter(), 0.0, []
        await self._socket.send(b'{"type":"request","id":"%b","body":%b}' % (self._name, body))
        while True:
            message = await self._inbox.get()
            first = first or perf_counter()
            kind = message[9:].partition(b'"')[0]  # after `{"type":"`
            data = message.partition(b',"data":')[2][:-1]
            if kind == b"event":
                parts.append(b"data: %b\n\n" % data)
            elif kind != b"accepted":
                break
        now, status = perf_counter(), _ENDS.get(kind, 500)
        if kind == b"done":
            body = b"".join([*parts, b"data: [DONE]\n\n"])
            problem, events = judge_stream(status, body, self._target.tokens)
        else:
            problem, events = judge_completion(status, data or message, self._target.tokens)
        if problem:
            self._recorder.count_problem(problem)
        else:
            self._recorder.count_answer(now - began, first - began, events)


def realtime_loops(target: LoadTarget, model: str, recorder: Recorder) -> Callable[[], RealtimeLoop]:
    """Return the maker of requests, of which `PER_SOCKET` share a connection."""
    netloc = f"{target.host}:{target.port}"
    requests = http_requests(netloc, model, target.tokens, target.stream)
    sockets: list[SharedSocket] = []

    def make() -> RealtimeLoop:
        if not sockets or len(sockets[-1].inboxes) == PER_SOCKET:
            sockets.append(SharedSocket(f"ws://{netloc}/v1/realtime", target.authorization()))
        return RealtimeLoop(sockets[-1], target, requests, recorder)

    return make
