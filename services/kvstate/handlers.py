"""Takes calls from the bus and sends each its answer, or an `ErrorReply`.

What the answers are is decided in `session_calls.py` and `block_calls.py`.
"""

import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from services.kvstate.metrics import Metrics
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import encode
from shared.errors import Internal, RyzError
from shared.messages import ErrorReply

Call = Callable[[bytes], Awaitable[bytes]]
Named = tuple[str, str, Call]  # a call's name in metrics, and its subject
log = structlog.get_logger(__name__)

# A page of a thousand sessions takes some 30 ms of this service. With many at once, the answers that the
# store gave to others in time would be read too late, and it would be taken for away.
AT_ONCE = {"list": 2}


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

    async def start(self, calls: Sequence[Named]) -> None:
        """Takes these calls from here on, as a member of the queue group."""
        for name, subject, call in calls:
            subscription = await self._bus.subscribe(
                subject,
                self._answering(name, call),
                queue=subjects.KVSTATE_QUEUE,
                max_concurrent=AT_ONCE.get(name, self._max_concurrent),
                max_pending=self._max_pending,
            )
            self._subscriptions.append(subscription)

    async def stop(self) -> None:
        """Takes no more calls; those that run go on."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()

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
