"""A bus inside one process with the semantics of NATS, for tests.

Several buses share one `MemoryBroker`, as several connections share a NATS server. A broker can be stopped
and started again, which is a lost server to its buses.
"""

import asyncio
import math
import random
from collections.abc import Mapping
from itertools import count

from shared.bus.api import Handler, Message, ServedSubject, Subscription
from shared.bus.delivery import DRAIN_WAIT_S, BusStats, Delivery
from shared.bus.nats_subscriptions import Credit, limit_of
from shared.bus.pending_replies import PendingReplies
from shared.bus.subject import check_pattern, check_size, check_subject, matches, not_sent
from shared.errors import Unavailable

DEFAULT_MAX_PAYLOAD = 1024 * 1024


class MemoryBroker:
    """The broker that the buses of a process connect to."""

    def __init__(self, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        self.up = asyncio.Event()
        self.up.set()
        self.restored_at = -math.inf
        self._subscriptions: list[MemorySubscription] = []
        self._inboxes = count()

    def stop(self) -> None:
        """Stops the broker; subscriptions are kept, as clients restore theirs."""
        self.up.clear()

    def start(self) -> None:
        """Starts the broker again."""
        self.restored_at = asyncio.get_running_loop().time()
        self.up.set()

    def new_inbox(self) -> str:
        """Returns a prefix that no other bus of this broker has."""
        return f"_INBOX.m{next(self._inboxes)}"

    def add(self, subscription: "MemorySubscription") -> None:
        """Registers a subscription."""
        self._subscriptions.append(subscription)

    def remove(self, subscription: "MemorySubscription") -> None:
        """Forgets a subscription. May be called twice."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def subscriptions_of(self, deliveries: set[Delivery]) -> list["MemorySubscription"]:
        """Returns the subscriptions that feed these deliveries."""
        return [s for s in self._subscriptions if s.delivery in deliveries]

    def route(self, message: Message) -> None:
        """Gives the message to every plain subscription and to one of each queue group."""
        queues: dict[str, list[MemorySubscription]] = {}
        found = False
        for subscription in self._subscriptions:
            if not matches(subscription.pattern, message.subject):
                continue
            found = True
            if subscription.queue:
                queues.setdefault(subscription.queue, []).append(subscription)
            else:
                subscription.offer(message)
        for members in queues.values():
            random.choice(members).offer(message)
        if not found and message.reply:
            self.route(Message(message.reply, b"", no_responders=True))


class MemorySubscription:
    """A subscription of a `MemoryBus`."""

    def __init__(
        self, broker: MemoryBroker, pattern: str, queue: str, delivery: Delivery, limit: int = 0
    ) -> None:
        self.pattern = pattern
        self.queue = queue
        self.delivery = delivery
        self._broker = broker
        self._limit = limit
        self._credit = self._new_credit() if limit else None

    def offer(self, message: Message) -> None:
        """Takes a message, unless there are too many."""
        if self._credit is None:
            self.delivery.offer(message)
        elif not self._credit.spent:
            self._credit(message)

    async def unsubscribe(self) -> None:
        """See `Subscription.unsubscribe`."""
        self._broker.remove(self)
        self.delivery.stop()

    async def drain(self) -> None:
        """See `Subscription.drain`."""
        self._broker.remove(self)
        await self.delivery.wait_empty(DRAIN_WAIT_S)
        self.delivery.stop()

    def _new_credit(self) -> Credit:
        loop = asyncio.get_running_loop()

        def renew(after_s: float) -> None:
            loop.call_later(after_s, self._refill)

        return Credit(
            self._limit,
            self.delivery.offer,
            renew=renew,
            on_spent=self.delivery.throttled,
            clock=loop.time,
        )

    def _refill(self) -> None:
        self._credit = self._new_credit()


class MemoryBus:
    """Implements `Bus`. Handlers run in a later turn of the loop, never inside `publish`."""

    def __init__(self, broker: MemoryBroker | None = None, *, connect_wait_s: float = 5.0) -> None:
        self.broker = broker or MemoryBroker()
        self.stats = BusStats()
        self._connect_wait_s = connect_wait_s
        self._deliveries: set[Delivery] = set()
        self._replies = PendingReplies(self.broker.new_inbox())
        self._closed = False
        replies = Delivery(self._replies.pattern, self._replies.arrived, 0, 65_536, self.stats)
        self._answers = self._add(replies)

    @property
    def max_payload(self) -> int:
        """See `Bus.max_payload`."""
        return self.broker.max_payload

    @property
    def connected(self) -> bool:
        """See `Bus.connected`."""
        return self.broker.up.is_set() and not self._closed

    @property
    def restored_at(self) -> float:
        """See `Bus.restored_at`."""
        return self.broker.restored_at

    @property
    def served(self) -> list[ServedSubject]:
        """What was handled on each subscription."""
        subscriptions = self.broker.subscriptions_of(self._deliveries)
        return [one.delivery.served(one.queue) for one in subscriptions]

    def new_inbox(self) -> str:
        """See `Bus.new_inbox`."""
        return self.broker.new_inbox()

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """See `Bus.publish`."""
        self.publish_now(subject, data, reply=reply, headers=headers)

    def publish_now(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        """See `Bus.publish_now`."""
        check_subject(subject)
        if reply:
            check_subject(reply)
        check_size(subject, len(data), self.max_payload)
        if not self.connected:
            raise not_sent(subject)
        self.stats.published += 1
        self.broker.route(Message(subject, bytes(data), reply, dict(headers or {})))
        return True

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """See `Bus.request`."""
        await self._wait_connected(timeout_s)
        reply, future = self._replies.expect()
        try:
            await self.publish(subject, data, reply=reply, headers=headers)
        except BaseException:
            self._replies.forget(reply)
            raise
        return await self._replies.wait(reply, future, subject, timeout_s)

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        *,
        queue: str = "",
        max_concurrent: int = 0,
        max_pending: int = 65_536,
        max_per_s: int = 0,
        sampled: bool = False,
    ) -> Subscription:
        """See `Bus.subscribe`."""
        check_pattern(subject)
        await self._wait_connected(self._connect_wait_s)
        delivery = Delivery(subject, handler, max_concurrent, max_pending, self.stats, sampled=sampled)
        return self._add(delivery, queue, limit_of(max_per_s))

    async def flush(self) -> None:
        """See `Bus.flush`."""
        await self._wait_connected(self._connect_wait_s)

    async def close(self) -> None:
        """See `Bus.close`."""
        if self._closed:
            return
        for subscription in self.broker.subscriptions_of(self._deliveries - {self._answers.delivery}):
            await subscription.unsubscribe()
        for delivery in tuple(self._deliveries):
            await delivery.wait_idle(5.0)
        self._closed = True
        await self._answers.unsubscribe()
        self._replies.fail_all(Unavailable("the bus was closed", reason="broker_unavailable"))

    def _add(self, delivery: Delivery, queue: str = "", limit: int = 0) -> MemorySubscription:
        subscription = MemorySubscription(self.broker, delivery.subject, queue, delivery, limit)
        self.broker.add(subscription)
        self._deliveries = {d for d in self._deliveries if not d.finished} | {delivery}
        return subscription

    async def _wait_connected(self, timeout_s: float) -> None:
        if self._closed:
            raise Unavailable("the bus was closed", reason="broker_unavailable")
        if self.broker.up.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.broker.up.wait()
        except TimeoutError:
            raise Unavailable(
                f"no connection to the broker for {timeout_s:g} s", reason="broker_unavailable"
            ) from None
