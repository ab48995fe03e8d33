"""Takes calls from the bus and sends each its answer, or an `ErrorReply`.

What the answers are is decided in `session_calls.py` and `block_calls.py`. Calls that turns wait for (of
leaders and routers) run as they come. Those that people and programs make (lists, exports, imports, changes)
wait for each other by turns of tenants, apart from the former, so that no tenant's many calls hold up others.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from services.kvstate.metrics import Metrics
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import encode
from shared.errors import Internal, RateLimited, RyzError
from shared.messages import ErrorReply
from shared.subjects import HEADER_TENANT
from shared.tenant_places import TenantPlaces, TooManyWait

Call = Callable[[bytes], Awaitable[bytes]]
Named = tuple[str, str, Call]  # a call's name in metrics, and its subject
log = structlog.get_logger(__name__)

NEVER_FOR_TURNS = frozenset({"list", "delete", "describe", "pin"})  # others are if they name no tenant
PLACES, PER_TENANT = 4, 2  # calls that no turn waits for, at the same time
MAX_WAITING = (
    128  # of a tenant; at 30 ms each, which the longest lists take, the last waits 2 s as callers do
)
STOP_WAIT_S = 5.0
RETRY_AFTER_S = 1.0


class Handlers:
    """The service's side of its subjects. Several calls of each kind run at once, in no order."""

    def __init__(
        self, bus: Bus, metrics: Metrics, *, max_concurrent: int = 32, max_pending: int = 4096
    ) -> None:
        self._bus = bus
        self._metrics = metrics
        self._max_concurrent = max_concurrent
        self._max_pending = max_pending
        self._subscriptions: list[Subscription] = []
        self._places = TenantPlaces(PLACES, per_tenant=PER_TENANT, max_waiting=MAX_WAITING)
        self._by_turns: set[asyncio.Task[None]] = set()

    async def start(self, calls: Sequence[Named]) -> None:
        """Takes these calls from here on, as a member of the queue group."""
        for name, subject, call in calls:
            subscription = await self._bus.subscribe(
                subject,
                self._taking(name, call),
                queue=subjects.KVSTATE_QUEUE,
                max_concurrent=self._max_concurrent,
                max_pending=self._max_pending,
            )
            self._subscriptions.append(subscription)

    async def stop(self) -> None:
        """Takes no more calls; those that were taken are answered, within some seconds."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()
        if self._by_turns:
            await asyncio.wait(self._by_turns, timeout=STOP_WAIT_S)
        for late in self._by_turns:
            late.cancel()

    def _taking(self, name: str, call: Call) -> Callable[[Message], Awaitable[None]]:
        """A handler that answers at once what a turn waits for, and puts other calls into their line."""
        answer, never_for_turns = self._answering(name, call), name in NEVER_FOR_TURNS

        async def handle(message: Message) -> None:
            tenant = message.headers.get(HEADER_TENANT, "")
            if not (tenant or never_for_turns):
                await answer(message)
                return
            task = asyncio.create_task(self._in_turn(name, tenant, answer, message))
            self._by_turns.add(task)
            task.add_done_callback(self._by_turns.discard)

        return handle

    async def _in_turn(
        self, name: str, tenant: str, answer: Callable[[Message], Awaitable[None]], message: Message
    ) -> None:
        try:
            await self._places.enter(tenant)
        except TooManyWait:
            error = RateLimited(
                f"the tenant has {MAX_WAITING} calls about sessions waiting; make fewer at the same time",
                reason="session_calls",
                retry_after_s=RETRY_AFTER_S,
            )
            self._metrics.requests.labels(name, error.code).inc()
            await self._reply_error(message, error)
            return
        try:
            await answer(message)
        finally:
            self._places.leave(tenant)

    def _answering(self, name: str, call: Call) -> Callable[[Message], Awaitable[None]]:
        """A handler that runs the call, answers, and counts."""

        async def handle(message: Message) -> None:
            started = time.perf_counter()
            outcome = "ok"
            try:
                reply = await call(message.data)
                await self._reply(message, reply)
            except RyzError as error:
                outcome = error.code
                await self._reply_error(message, error)
            except Exception:
                outcome = Internal.code
                log.exception("call failed", call=name)
                await self._reply_error(
                    message, Internal(f"call {name} failed; the log of the KV state service has the trace")
                )
            finally:
                self._metrics.requests.labels(name, outcome).inc()
                self._metrics.seconds.labels(name).observe(time.perf_counter() - started)

        return handle

    async def _reply(self, message: Message, reply: bytes) -> None:
        if message.reply:
            await self._bus.publish(message.reply, reply)

    async def _reply_error(self, message: Message, error: RyzError) -> None:
        failure = ErrorReply(error=error.code, message=error.message, data=error.data)
        try:
            await self._reply(message, encode(failure))
        except RyzError as problem:  # broker gone, or no such subject: nobody to tell
            log.warning("error not delivered", error=error.message, problem=problem.message)
