"""nats-py's client without its tasks between socket and handlers.

Input goes from the transport to the handlers at once, and the commands of some iterations of the loop leave
in one write. nats-py keeps the handshake, the control lines, and the restoring of lost connections.
"""

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client

from shared.bus.api import Message
from shared.bus.broker.direct_transport import DirectTransport
from shared.bus.broker.parser import BrokerParser, parse_headers

MAX_UNSENT = 2 * 1024 * 1024  # bytes on their way to a slow broker, above which callers wait
FLUSH_WAIT_S = 5.0
# Iterations of the loop until what was published is written. Other input that is ready comes in between, and
# what it causes leaves in the same write, which costs more than these iterations. A lone message waits
# microseconds.
ROUNDS_ALONE = 2
ROUNDS_AMONG_OTHERS = 5  # after a write that carried several messages
LONGEST_WAIT_NS = 5_000_000  # of a command, while others are published; 1 ms costs a loaded process a fifth
NO_RESPONDERS = "503"

log = structlog.get_logger(__name__)


class DirectClient(Client):  # type: ignore[misc, unused-ignore]
    """nats-py's client, with a plain function in place of a queue and a task for each subscription."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = BrokerParser(self)  # type: ignore[assignment, unused-ignore]  # of control lines
        self._turns = asyncio.get_running_loop()
        self._write_is_due = False
        self._pending_since_ns = 0
        self._rounds_to_wait = ROUNDS_ALONE
        self._has_unsent = False  # bytes that were written and the socket has not taken, at the last check
        self._sinks: dict[int, Callable[[Message], None]] = {}

    async def listen(
        self, pattern: str, queue: str, sink: Callable[[Message], None], *, limit: int = 0
    ) -> Any:
        """Subscribes.

        Args:
            pattern: The subject or pattern.
            queue: The queue group, or empty.
            sink: Called from the read loop with each message.
            limit: After so many messages the broker ends the subscription; 0: never.

        Returns:
            nats-py's subscription, for `forget`.
        """
        # a future in place of a callback keeps nats-py from starting a task; messages never reach it
        future = asyncio.get_running_loop().create_future()
        subscription = await self.subscribe(pattern, queue=queue, future=future)
        self._sinks[subscription._id] = sink
        if limit:
            await subscription.unsubscribe(limit)
        return subscription

    async def forget(self, subscription: Any, *, flush_s: int = 0) -> None:
        """Ends a subscription made by `listen`.

        Args:
            flush_s: How long it still gets messages that the broker sends before it knows of the end.
        """
        if not flush_s:
            self._sinks.pop(subscription._id, None)
        try:
            await subscription.unsubscribe()
            if flush_s:  # twice, as in `NatsBus.flush`
                await self.flush(flush_s)
                await self.flush(flush_s)
        except nats.errors.Error as error:  # closed meanwhile: the broker has forgotten it by itself
            log.debug("unsubscribe without connection", error=str(error))
        finally:
            self._sinks.pop(subscription._id, None)

    @property
    def is_behind(self) -> bool:
        """Whether more than `MAX_UNSENT` bytes are on their way to the broker."""
        if not self._has_unsent:
            return self._pending_data_size > MAX_UNSENT
        transport = self._transport
        unsent = transport.unsent if isinstance(transport, DirectTransport) else 0
        self._has_unsent = unsent > 0
        return self._pending_data_size + unsent > MAX_UNSENT

    def write_soon(self, command: bytes) -> None:
        """Sends a command some iterations of the loop later, in one write with all others until then.

        In an iteration that takes long the first ones leave meanwhile, so that their receivers need not wait.
        """
        now_ns = monotonic_ns()
        if not self._pending:
            self._pending_since_ns = now_ns
        self._pending.append(command)
        self._pending_data_size += len(command)
        if now_ns - self._pending_since_ns > LONGEST_WAIT_NS:
            self._write_pending()
        elif not self._write_is_due:
            self._write_is_due = True
            self._turns.call_soon(self._wait_round, self._rounds_to_wait - 1)

    async def wait_sent(self) -> None:
        """Waits until the socket takes data again, at most `FLUSH_WAIT_S`."""
        self._write_pending()
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(FLUSH_WAIT_S):
                await self._transport.drain()  # type: ignore[no-untyped-call, unused-ignore]
        except TimeoutError:
            await self._error_cb(nats.errors.FlushTimeoutError())
        except (OSError, RuntimeError) as error:  # the read loop hears of the loss, too
            log.debug("the connection ended while data was sent", error=str(error))

    def _wait_round(self, left: int) -> None:
        if left:
            self._turns.call_soon(self._wait_round, left - 1)
            return
        self._write_is_due = False
        self._rounds_to_wait = ROUNDS_AMONG_OTHERS if len(self._pending) > 1 else ROUNDS_ALONE
        self._write_pending()

    def _write_pending(self) -> None:
        transport = self._transport
        if transport is None or not self.is_connected:
            return  # what waits is sent after the next connection, or dropped with this one
        parts, size = self._pending, self._pending_data_size
        self._pending, self._pending_data_size = [], 0
        if not parts:
            return
        try:
            if isinstance(transport, DirectTransport):
                transport.write_all(parts, size)
                self._has_unsent = transport.unsent > 0
            else:
                transport.writelines(parts)  # type: ignore[no-untyped-call, unused-ignore]
        except (OSError, RuntimeError, AttributeError) as error:  # closed; the read loop hears of it, too
            log.debug("nothing was written", error=str(error))

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # nats-py hands what waits to a task of its own, one iteration of the loop later
        self._write_pending()
        if force_flush:
            await self.wait_sent()
        done = self._turns.create_future()
        done.set_result(None)
        return done

    async def _send_ping(self, future: Any = None) -> None:
        self._write_pending()  # the answer shows that the broker has what was published before
        try:
            await super()._send_ping(future)
        except (OSError, RuntimeError) as error:  # uvloop's, where the transport closed just before
            raise nats.errors.ConnectionClosedError from error

    async def _read_loop(self) -> None:
        # messages are delivered as they arrive; nats-py's own loop reads the control lines that are left
        if isinstance(self._transport, DirectTransport):
            self._transport.read_directly(BrokerParser(self).feed)
        await super()._read_loop()

    def deliver(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """See `ParserListener`."""
        sink = self._sinks.get(sid)
        if sink is None:
            return
        # clients may put any bytes into subjects; a reply subject that is not text is of no use
        name, answer = str(subject, "utf-8", "replace"), str(reply, "utf-8", "replace") if reply else ""
        if not headers:
            sink(Message(name, data, answer))
            return
        parsed, status = parse_headers(headers)
        sink(Message(name, data, answer, parsed, not data and status == NO_RESPONDERS))

    async def _process_pong(self) -> None:
        # the answer to a flush that was cancelled or timed out must not end the read loop
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()
