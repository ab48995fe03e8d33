"""Hands the messages of one subscription to its handler: in order or some at once, within bounds.

A plain function runs without a task, some messages in an iteration of the loop.

Both buses use it, so that ordering, bounds and the treatment of failing handlers are the same. It decides
nothing about where messages come from.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from time import perf_counter_ns

import structlog

from shared.bus.api import Handler, Message, ServedSubject

MAX_PENDING_BYTES = 128 * 1024 * 1024
DRAIN_WAIT_S = 5.0
_FLOOD_REMEDY = (
    "a service outside sends too many: slow it down, remove its user (ryz keys revoke), or raise "
    "RYZ_ROUTER_OUTSIDE_CALLS_S of the routers if they are requests that should be served"
)
ROUND_MESSAGES = 32  # of one subscription, before other tasks run

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class BusStats:
    """Counters of a bus since it was connected; services export them as metrics.

    Attributes:
        connected: Whether there is a connection to the broker now; the only one that is no counter.
    """

    published: int = 0
    received: int = 0
    dropped: int = 0
    throttled: int = 0
    handler_errors: int = 0
    errors: int = 0
    disconnects: int = 0
    reconnects: int = 0
    foreign_brokers: int = 0
    connected: bool = False


def is_plain(handler: Handler) -> bool:
    """Returns whether the handler is called without a task; it may still return something to await."""
    return not (iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__))


class Delivery:
    """The handler of one subscription, and the messages that wait for it.

    Plain functions of ordered subscriptions are called in iterations of the loop. For others a task runs
    while there are messages: one for an ordered subscription, else one for each running handler. It goes on
    with the next message, so a burst costs one task per slot, not one per message.

    Args:
        subject: The subject, for logs.
        handler: Called with each message.
        max_concurrent: Handlers at the same time; 0: one, in order.
        max_pending: Messages that may wait.
        sampled: See `Bus.subscribe`.
    """

    def __init__(
        self,
        subject: str,
        handler: Handler,
        max_concurrent: int,
        max_pending: int,
        stats: BusStats,
        *,
        sampled: bool = False,
    ) -> None:
        self.subject = subject
        self._handler = handler
        self._in_rounds = max_concurrent == 0 and is_plain(handler)
        self._round_is_due = False
        self._slots = max(1, max_concurrent)
        self._max_pending = max_pending
        self._stats = stats
        self._sampled = sampled
        self._pending: deque[Message] = deque()
        self._pending_bytes = 0
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._handled = self._failed = self._busy_ns = 0

    def served(self, queue: str) -> ServedSubject:
        """Returns what was handled so far."""
        return ServedSubject(self.subject, queue, self._handled, self._failed, self._busy_ns)

    @property
    def num_pending(self) -> int:
        """Messages that wait for the handler."""
        return len(self._pending)

    @property
    def finished(self) -> bool:
        """True if it is stopped and no handler runs any more."""
        return self._stopped and not (self._running or self._round_is_due)

    def offer(self, message: Message) -> None:
        """Takes a message, or drops and counts it when too many wait."""
        if self._stopped:
            return
        self._stats.received += 1
        if not self._in_rounds and len(self._running) < self._slots:
            self._start(message)
            return
        pending, num_bytes = self._pending, self._pending_bytes + len(message.data)
        if len(pending) >= self._max_pending or num_bytes > MAX_PENDING_BYTES:
            self._stats.dropped += 1
            if self._stats.dropped.bit_count() == 1:  # 1, 2, 4, 8, ...: one line per doubling
                log.warning("message dropped", subject=self.subject, reason="slow_consumer",
                            pending=len(pending), dropped=self._stats.dropped)  # fmt: skip
            return
        pending.append(message)
        self._pending_bytes = num_bytes
        if self._in_rounds and not (self._round_is_due or self._running):
            self._round_is_due = True
            asyncio.get_running_loop().call_soon(self._run_round)

    def throttled(self) -> None:
        """Counts a time in which the broker drops messages, unless samples are all that was asked for."""
        if self._sampled:
            return
        self._stats.throttled += 1
        if self._stats.throttled.bit_count() == 1:  # as above
            log.warning("too many messages a second, the broker drops the others", subject=self.subject,
                        throttled=self._stats.throttled, remedy=_FLOOD_REMEDY)  # fmt: skip

    def stop(self) -> None:
        """Starts no more handlers and drops waiting messages; running handlers go on."""
        self._stopped = True
        self._pending.clear()
        self._pending_bytes = 0

    async def wait_empty(self, timeout_s: float) -> None:
        """Waits until every message that was offered is handled, or the time is over."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while loop.time() < give_up:
            others = self._running - {asyncio.current_task()}
            if not (others or self._round_is_due):
                return
            if others:
                left_s = give_up - loop.time()
                await asyncio.wait(others, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets a free slot take the next message before the next check

    async def wait_idle(self, timeout_s: float) -> None:
        """Waits for running handlers, except the caller's own, and cancels those left after the time."""
        others = self._running - {asyncio.current_task()}
        if not others:
            return
        _, late = await asyncio.wait(others, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            log.warning("handlers cancelled at close", subject=self.subject, handlers=len(late))
            await asyncio.wait(late, timeout=1.0)

    def _run_round(self) -> None:
        """Calls a plain handler with some of the messages that wait."""
        self._round_is_due = False
        pending, handler, left, waits = self._pending, self._handler, ROUND_MESSAGES, None
        began_ns = perf_counter_ns()
        while pending and left and not self._running:  # a handler that waits goes on with the others later
            message = pending.popleft()
            self._pending_bytes -= len(message.data)
            left -= 1
            try:
                waits = handler(message)
            except Exception:
                self._note_failure(message)
            if waits is not None:
                left += 1  # its task counts it
                self._start(message, waits)
                break
        self._handled += ROUND_MESSAGES - left
        self._busy_ns += perf_counter_ns() - began_ns
        if pending and not self._running:  # other callbacks run first
            self._round_is_due = True
            asyncio.get_running_loop().call_soon(self._run_round)

    def _start(self, message: Message, waits: Awaitable[object] | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._work(message, waits))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _next(self) -> Message:
        message = self._pending.popleft()
        self._pending_bytes -= len(message.data)
        return message

    def _note_failure(self, message: Message) -> None:
        self._failed += 1
        self._stats.handler_errors += 1
        log.exception("handler failed", subject=message.subject)

    async def _work(self, message: Message, waits: Awaitable[object] | None) -> None:
        """Handles a message, whose handler may have begun and returned `waits`, and those after it."""
        handled = 0
        while True:
            began_ns = perf_counter_ns()
            try:
                if waits is None:
                    waits = self._handler(message)
                if waits is not None:
                    await waits
            except Exception:
                self._note_failure(message)
            waits = None
            self._handled += 1
            self._busy_ns += perf_counter_ns() - began_ns
            handled += 1
            if not handled % ROUND_MESSAGES:  # handlers may never wait, so other tasks run here
                await asyncio.sleep(0)
            if not self._pending:
                return
            message = self._next()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._pending and not self._stopped:  # its task was cancelled; those behind it are still handled
            self._start(self._next())
