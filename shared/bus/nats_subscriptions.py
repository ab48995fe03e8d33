"""The subscriptions of a `NatsBus`: they outlive connections, and each connection gets them anew.

`Credit`: limits the messages a second of a subscription. The broker drops the others, so they cost nothing
here.

A broker ends a subscription after a number of messages if it was asked to. A limited subscription therefore
consists of lives with so many messages each. The next life usually begins before the last one ends, but not
sooner than the rate allows.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import nats.errors
import structlog

from shared.bus.api import Message, ServedSubject
from shared.bus.broker.connection import NatsConnection
from shared.bus.delivery import DRAIN_WAIT_S, Delivery
from shared.bus.subject import broker_away

WINDOW_S = 1.0
FLUSH_TIMEOUT_S = 5
log = structlog.get_logger(__name__)


class Credit:
    """Takes the messages of one life of a limited subscription.

    Args:
        limit: Messages of one life.
        offer: Called with each message.
        renew: Called once, with the seconds after which the next life may begin.
        on_spent: Called when all messages were used before the next life could begin.
        clock: Returns seconds.
    """

    __slots__ = ("_began", "_clock", "_half", "_limit", "_offer", "_on_spent", "_renew", "_renewed", "_used")

    def __init__(
        self,
        limit: int,
        offer: Callable[[Message], None],
        *,
        renew: Callable[[float], None],
        on_spent: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._limit, self._half = limit, limit // 2
        self._offer = offer
        self._renew = renew
        self._on_spent = on_spent
        self._clock = clock
        self._began = clock()
        self._used = 0
        self._renewed = False

    @property
    def spent(self) -> bool:
        """True if the broker sends no more messages of this life."""
        return self._used >= self._limit

    def __call__(self, message: Message) -> None:
        """Takes a message."""
        self._used += 1
        if self._used >= self._half and not self._renewed:
            self._consider()
        self._offer(message)

    def _consider(self) -> None:
        age_s = self._clock() - self._began
        if age_s >= WINDOW_S / 2:  # half of the messages in half of the time, or later
            self._renewed = True
            self._renew(0.0)
        elif self.spent:
            self._renewed = True
            self._on_spent()
            self._renew(WINDOW_S - age_s)


def limit_of(max_per_s: int) -> int:
    """Returns the messages of one life; 0 for a subscription without a limit."""
    return max(2, round(max_per_s * WINDOW_S)) if max_per_s else 0


class NatsSubscription:
    """Implements `Subscription`."""

    def __init__(
        self, table: "SubscriptionTable", pattern: str, queue: str, delivery: Delivery, max_per_s: int
    ) -> None:
        self.pattern = pattern
        self.queue = queue
        self.limit = limit_of(max_per_s)
        self.delivery = delivery
        self._table = table

    async def unsubscribe(self) -> None:
        """See `Subscription.unsubscribe`."""
        self.delivery.stop()
        await self._table.remove(self)

    async def drain(self) -> None:
        """See `Subscription.drain`."""
        await self._table.remove(self, flush_s=FLUSH_TIMEOUT_S)
        await self.delivery.wait_empty(DRAIN_WAIT_S)
        self.delivery.stop()


class SubscriptionTable:
    """Makes subscriptions, registers them with a connection, and renews those that have a limit.

    Args:
        up: Set while the bus is connected.
        current: Returns the connection of the bus, which changes when the bus makes a new one.
    """

    def __init__(self, up: asyncio.Event, current: Callable[[], NatsConnection]) -> None:
        self._up = up
        self._current = current
        self._registered: dict[NatsSubscription, Any] = {}  # with nats-py's subscription
        self._deliveries: set[Delivery] = set()
        self._renewing: set[asyncio.Task[None]] = set()

    @property
    def served(self) -> list[ServedSubject]:
        """What was handled on each subscription."""
        return [one.delivery.served(one.queue) for one in self._registered]

    @property
    def num_pending(self) -> int:
        """Messages that wait for their handlers, on all subscriptions."""
        return sum(delivery.num_pending for delivery in self._deliveries)

    async def add(self, pattern: str, queue: str, delivery: Delivery, max_per_s: int) -> NatsSubscription:
        """Subscribes; the broker may not have heard of it when this returns.

        Raises:
            Unavailable: The connection has just ended.
        """
        subscription = NatsSubscription(self, pattern, queue, delivery, max_per_s)
        self._deliveries = {d for d in self._deliveries if not d.finished} | {delivery}
        try:
            self._registered[subscription] = await self._register(subscription)
        except nats.errors.Error as error:
            raise broker_away(f"not subscribed: {error}") from error
        return subscription

    async def remove(self, subscription: NatsSubscription, *, flush_s: int = 0) -> None:
        """Ends a subscription at the broker; see `NatsConnection.forget`."""
        theirs, connection = self._registered.pop(subscription, None), self._current()
        if theirs is not None and not connection.is_closed:
            await connection.forget(theirs, flush_s=flush_s)

    async def restore(self) -> None:
        """Registers all subscriptions with the current connection, which is new."""
        connection = self._current()
        for subscription in tuple(self._registered):  # one may end meanwhile
            theirs = await self._register(subscription)
            if subscription in self._registered:
                self._registered[subscription] = theirs
            else:
                await connection.forget(theirs)

    async def close(self, wait_s: float) -> None:
        """Ends all subscriptions, and waits up to `wait_s` for the handlers of each that run."""
        for subscription in tuple(self._registered):
            await subscription.unsubscribe()
        for delivery in tuple(self._deliveries):
            await delivery.wait_idle(wait_s)
        ending = [*self._renewing]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _register(self, subscription: NatsSubscription) -> Any:
        delivery, limit = subscription.delivery, subscription.limit
        sink = delivery.offer
        loop = asyncio.get_running_loop()

        def renew(after_s: float) -> None:
            task = loop.create_task(self._renew(subscription, after_s))
            self._renewing.add(task)
            task.add_done_callback(self._renewing.discard)

        if limit:
            sink = Credit(limit, sink, renew=renew, on_spent=delivery.throttled, clock=loop.time)
        return await self._current().listen(subscription.pattern, subscription.queue, sink, limit=limit)

    async def _renew(self, subscription: NatsSubscription, after_s: float) -> None:
        """The next life of a limited subscription. It begins before the one before is forgotten."""
        await asyncio.sleep(after_s)
        await self._up.wait()
        connection, before = self._current(), self._registered.get(subscription)
        if before is None:
            return
        try:
            theirs = await self._register(subscription)
        except nats.errors.Error as error:  # lost in between: with the next connection it is made again
            log.debug("not subscribed again", subject=subscription.pattern, error=str(error))
            return
        if self._current() is not connection:
            return
        if subscription in self._registered:
            self._registered[subscription] = theirs
        else:
            before = theirs
        await connection.forget(before, flush_s=FLUSH_TIMEOUT_S)
