"""One HTTP connection of the load generator: a request, its answer, the next request, until told to stop.

Works on asyncio's protocols with httptools' parser. It measures from the write of a request to the last byte
of the answer, and opens itself again when the server closes it; what counts as a right answer is decided by
`benchmarks/serving/answers.py`.
"""

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast

import httptools

from benchmarks.serving.answers import problem_of_completion, problem_of_stream
from benchmarks.serving.requests import RequestMaker

REOPEN_DELAY_S = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send requests, and what a right answer has."""

    host: str
    port: int
    tokens: int
    stream: bool


class Record(Protocol):
    """What a connection tells about its requests, and asks before the next one."""

    stopping: bool

    def right(self, latency_s: float, first_byte_s: float) -> None:
        """An answer that was as it should be."""
        ...

    def wrong(self, problem: str) -> None:
        """Anything else."""
        ...


class Connection(asyncio.Protocol):
    """Keeps exactly one request in flight."""

    def __init__(self, target: Target, requests: RequestMaker, record: Record) -> None:
        self._target = target
        self._requests = requests
        self._record = record
        self._check = problem_of_stream if target.stream else problem_of_completion
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._body: list[bytes] = []
        self._sent_at = self._first_at = 0.0
        self._complete = self._keep_alive = False
        self.idle = asyncio.Event()  # no answer is due
        self.idle.set()

    def open(self) -> None:
        """Connects in the background and sends the first request; tries again until the record says stop."""
        self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def close(self) -> None:
        """Ends the connection, whatever it waits for; what is unanswered is the caller's to count."""
        self.idle.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._record.stopping:
            try:
                await loop.create_connection(lambda: self, self._target.host, self._target.port)
            except OSError as error:
                self._record.wrong(f"cannot connect: {error.strerror or error}")
                await asyncio.sleep(REOPEN_DELAY_S)
            else:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there: sends the first request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in shape only
        self._send()

    def _send(self) -> None:
        if self._record.stopping or self._transport is None:
            return
        self._parser = httptools.HttpResponseParser(self)
        self._body.clear()
        self._complete = False
        self.idle.clear()
        self._first_at = 0.0
        self._sent_at = perf_counter()
        self._transport.write(self._requests.next())

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._first_at == 0.0:
            self._first_at = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._wrong(f"not HTTP: {error}")
            self._close()
        if self._complete:
            self._judge()

    def on_body(self, body: bytes) -> None:
        """A piece of the body, from the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The whole answer is there, says the parser; it must return before a new one takes its place."""
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()  # the parser forgets it when it returns

    def _judge(self) -> None:
        now = perf_counter()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        problem = self._check(self._parser.get_status_code(), body, self._target.tokens)
        if problem:
            self._wrong(problem)
        else:
            self.idle.set()
            self._record.right(now - self._sent_at, self._first_at - self._sent_at)
        if self._keep_alive:
            self._send()
        else:
            self._close()

    def _wrong(self, problem: str) -> None:
        if not self.idle.is_set():
            self.idle.set()
            self._record.wrong(problem)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed: an error if it owed an answer; opens again."""
        self._transport = None
        self._wrong(f"connection closed before the answer: {exc or 'end of file'}")
        if not self._record.stopping:
            self.open()
