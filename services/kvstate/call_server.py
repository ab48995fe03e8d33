"""Takes calls from the bus, schedules them, and answers and counts them.

`sessions/calls.py` and `blocks/calls.py` decide the answers. Calls of leaders and routers, for which a turn
waits, run at once. Calls of people and programs (lists, exports, imports, changes) wait in a separate line in
which tenants are served in rotation, so that many calls of one tenant do not delay another tenant or any
turn.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from services.kvstate.metrics import KVStateMetrics
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.bus.endpoint import Endpoint, bound_to
from shared.errors import Internal, InvalidRequest, RateLimited, RyzError
from shared.flow.tenant_slots import TenantSlots, TooManyWait
from shared.messages import Wire
from shared.subjects import HEADER_TENANT
from shared.telemetry.spans.call_trace import recorded_call
from shared.telemetry.spans.facts import SpanSink

log = structlog.get_logger(__name__)

NEVER_FOR_TURNS = frozenset({"list", "delete", "describe", "pin"})  # a turn waits for others without a tenant
AT_ONCE, PER_TENANT = 4, 2  # calls at the same time that no turn waits for: of all tenants, and of one
# Of one tenant. The longest lists take 30 ms each, so the last call waits 2 s, the time-out of callers.
MAX_WAITING = 128
STOP_WAIT_S = 5.0
RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class CallKind:
    """One kind of call.

    Attributes:
        name: Names the call in metrics.
        subject: Requests arrive there.
        kind: The type of the requests.
        answer: Takes a request of that type and returns the reply.
    """

    name: str
    subject: str
    kind: type[Wire]
    answer: Callable[[Any], Awaitable[Wire]]


class CallServer:
    """Subscribes to calls and answers them. Several calls of each kind run at once, in no order."""

    def __init__(
        self,
        bus: Bus,
        metrics: KVStateMetrics,
        spans: SpanSink | None = None,
        *,
        max_concurrent: int,
        max_pending: int,
    ) -> None:
        self._bus = bus
        self._endpoint = Endpoint(bus)
        self._metrics = metrics
        self._spans = spans
        self._max_concurrent = max_concurrent
        self._max_pending = max_pending
        self._subscriptions: list[Subscription] = []
        self._slots = TenantSlots(AT_ONCE, per_tenant=PER_TENANT, max_waiting=MAX_WAITING)
        self._queued_calls: set[asyncio.Task[None]] = set()

    async def start(self, calls: Sequence[CallKind]) -> None:
        """Subscribes to these calls as a member of the queue group."""
        for call in calls:
            self._metrics.requests.labels(call.name, InvalidRequest.code)  # alerts measure growth from 0
            subscription = await self._bus.subscribe(
                call.subject,
                self._scheduled(call),
                queue=subjects.KVSTATE_QUEUE,
                max_concurrent=self._max_concurrent,
                max_pending=self._max_pending,
            )
            self._subscriptions.append(subscription)

    async def stop(self) -> None:
        """Takes no more calls, and answers those that the broker had sent; some seconds are the most."""
        await asyncio.gather(*(subscription.drain() for subscription in self._subscriptions))
        self._subscriptions.clear()
        if self._queued_calls:
            _, late = await asyncio.wait(self._queued_calls, timeout=STOP_WAIT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _scheduled(self, call: CallKind) -> Callable[[Message], Awaitable[None]]:
        """Returns a handler that runs calls of turns at once and puts other calls into their line."""
        answer, never_for_turns = self._counted(call), call.name in NEVER_FOR_TURNS

        async def handle(message: Message) -> None:
            tenant = message.headers.get(HEADER_TENANT, "")
            if not (tenant or never_for_turns):
                await answer(message)
                return
            task = asyncio.create_task(self._run_queued(call.name, tenant, answer, message))
            self._queued_calls.add(task)
            task.add_done_callback(self._queued_calls.discard)

        return handle

    async def _run_queued(
        self, name: str, tenant: str, answer: Callable[[Message], Awaitable[None]], message: Message
    ) -> None:
        try:
            await self._slots.enter(tenant)
        except TooManyWait:
            error = RateLimited(
                f"the tenant has {MAX_WAITING} calls about sessions waiting; make fewer at the same time",
                reason="session_calls",
                retry_after_s=RETRY_AFTER_S,
            )
            self._metrics.requests.labels(name, error.code).inc()
            await self._endpoint.send_error(message, error)
            return
        try:
            await answer(message)
        finally:
            self._slots.leave(tenant)

    def _counted(self, call: CallKind) -> Callable[[Message], Awaitable[None]]:
        """Returns a handler that answers and counts."""

        async def answer(request: Wire, _: Message) -> Wire:
            try:
                return await call.answer(request)
            except RyzError:
                raise
            except Exception:
                log.exception("call failed", call=call.name)
                raise Internal(
                    f"call {call.name} failed; the log of the KV state service has the trace"
                ) from None

        respond = self._endpoint.handler(call.kind, answer)

        async def handle(message: Message) -> None:
            started = time.perf_counter()
            with (
                bound_to(message),
                recorded_call(self._spans, f"kvstate {call.name}", message.headers) as trace,
            ):
                error = await respond(message)
                if error is not None and trace is not None:
                    trace.error = error.code
            self._metrics.requests.labels(call.name, error.code if error else "ok").inc()
            self._metrics.seconds.labels(call.name).observe(time.perf_counter() - started)

        return handle
