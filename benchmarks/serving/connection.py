"""One HTTP connection of the load generator: a request, its answer, the next request, until it is stopped.

It is an asyncio protocol with httptools' parser. It measures from the write of a request to the last byte of
the answer, and opens itself again when the server closes it. `answers.py` decides what a right answer is.
"""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import httptools

from benchmarks.serving.answers import judge_completion, judge_stream
from benchmarks.serving.requests import NumberedRequests

REOPEN_DELAY_S = 0.05
# Of an event: some servers send the head, or an event without text, long before the first token.
_TEXT = re.compile(rb'"content": ?"[^"]')


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The gateway, the tokens of a right answer, and the key that requests carry (empty: none)."""

    host: str
    port: int
    tokens: int
    stream: bool
    api_key: str = ""

    def authorization(self) -> dict[str, str]:
        """The header with the key, if there is one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


class Recorder:
    """Collects what connections report while the measured time runs."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.first_texts_s: list[float] = []
        self.events = 0
        self.problems: Counter[str] = Counter()
        self.measuring = False
        self.stopping = False

    def count_answer(self, latency_s: float, first_text_s: float, events: int) -> None:
        """Record a right answer, whose text came in so many events."""
        if self.measuring:
            self.events += events
            self.latencies_s.append(latency_s)
            self.first_texts_s.append(first_text_s)

    def count_problem(self, problem: str) -> None:
        """Record a wrong or missing answer; those of the warm-up count as well."""
        self.problems[problem] += 1


class LoadConnection(asyncio.Protocol):
    """Keeps exactly one request in flight."""

    def __init__(self, target: LoadTarget, requests: NumberedRequests, recorder: Recorder) -> None:
        self._target = target
        self._requests = requests
        self._recorder = recorder
        self._check = judge_stream if target.stream else judge_completion
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._body: list[bytes] = []
        self._sent_at = self._first_at = 0.0
        self._complete = self._keep_alive = False
        self.idle = asyncio.Event()  # set while no answer is due
        self.idle.set()

    def open(self) -> None:
        """Connect in the background and send the first request; try again until the recorder is stopping."""
        self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def close(self) -> None:
        """End the connection, whatever it waits for; the caller counts what is unanswered."""
        self.idle.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._recorder.stopping:
            try:
                await loop.create_connection(lambda: self, self._target.host, self._target.port)
            except OSError as error:
                self._recorder.count_problem(f"cannot connect: {error.strerror or error}")
                await asyncio.sleep(REOPEN_DELAY_S)
            else:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self._send()

    def _send(self) -> None:
        if self._recorder.stopping or self._transport is None:
            return
        self._parser = httptools.HttpResponseParser(self)
        self._body.clear()
        self._complete = False
        self.idle.clear()
        self._first_at = 0.0
        self._sent_at = perf_counter()
        self._transport.write(self._requests.next())

    def data_received(self, data: bytes) -> None:
        """Parse bytes of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self._close()
        if self._complete:
            self._judge()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body; called by the parser."""
        if self._first_at == 0.0 and _TEXT.search(body):
            self._first_at = perf_counter()
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note the end; called by the parser, which a new one may replace only after this has returned."""
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()  # known only inside this callback

    def _judge(self) -> None:
        now = perf_counter()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        problem, events = self._check(self._parser.get_status_code(), body, self._target.tokens)
        if problem:
            self._fail(problem)
        else:
            self.idle.set()
            self._recorder.count_answer(now - self._sent_at, (self._first_at or now) - self._sent_at, events)
        if self._keep_alive:
            self._send()
        else:
            self._close()

    def _fail(self, problem: str) -> None:
        if not self.idle.is_set():
            self.idle.set()
            self._recorder.count_problem(problem)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Open again; a problem if an answer was due."""
        self._transport = None
        self._fail(f"connection closed before the answer: {exc or 'end of file'}")
        if not self._recorder.stopping:
            self.open()
