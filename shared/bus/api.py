"""The contract of a bus.

Delivery is at most once, and in order per publisher and subject, as with core NATS. Users of the bus number
messages that must not be lost, and ask for missing ones again.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from shared.errors import Unavailable


class Message(msgspec.Struct, frozen=True):
    """A message that arrived. `no_responders` marks the broker's answer to a publish without a subscriber.

    It is a struct because a dataclass takes 0.7 microseconds longer to make, for every message of a process.
    """

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = {}  # each message gets its own
    no_responders: bool = False


# What it returns is awaited, and otherwise ignored. A plain function that waits for nothing returns None.
Handler = Callable[[Message], Awaitable[object] | None]


@dataclass(frozen=True, slots=True)
class ServedSubject:
    """What a bus has handled on one of its subscriptions.

    Attributes:
        subject: The subject or the pattern.
        queue: The queue group, or empty.
        handled: Messages that were handled.
        failed: Those of them whose handler raised.
        busy_ns: How long the handlers took, in nanoseconds.
    """

    subject: str
    queue: str
    handled: int
    failed: int
    busy_ns: int


class NoResponders(Unavailable):
    """The subject of a request has no subscriber."""


class RequestTimedOut(Unavailable):
    """A request got no reply in time."""


class Subscription(Protocol):
    """A running subscription."""

    async def unsubscribe(self) -> None:
        """Stops deliveries; handlers that already run go on. May be called twice."""
        ...

    async def drain(self) -> None:
        """Stops deliveries, and returns when the messages that the broker had sent by then are handled.

        It takes some seconds at most. After them, or without a broker, it ends like `unsubscribe`.
        """
        ...


class Bus(Protocol):
    """Publish and subscribe. All methods may be called from one event loop only.

    Subjects follow NATS: tokens with dots between them, `*` for one token, `>` for the rest. Without a
    connection every method but `close` waits for one as long as it may, and then raises `Unavailable` (reason
    `broker_unavailable`); `publish` never waits.
    """

    @property
    def max_payload(self) -> int:
        """The largest payload in bytes; `publish` and `request` raise `RequestTooLarge` above it."""
        ...

    @property
    def connected(self) -> bool:
        """True while there is a connection to a broker."""
        ...

    @property
    def restored_at(self) -> float:
        """Time of the last restored connection by the running loop's clock; -inf if none was lost.

        Other processes lost theirs as well and may come back some seconds later, so the silence of a peer
        means little until then.
        """
        ...

    def new_inbox(self) -> str:
        """Returns a unique subject prefix. Append `.name` for subjects below it."""
        ...

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends one message without waiting.

        With `reply` and no subscriber on `subject`, a message with `no_responders` arrives on `reply`.
        """
        ...

    def publish_now(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        """Sends one message like `publish`, for callers that are no coroutines.

        Returns:
            False if nothing was sent because too much is on its way to a slow broker; then await `publish`.
        """
        ...

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Sends one message and returns the first reply.

        Raises:
            NoResponders: The subject has no subscriber; at once.
            RequestTimedOut: No reply came within `timeout_s`.
        """
        ...

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
        """Delivers messages to `handler` until unsubscribed; the broker knows it when this returns.

        An exception of the handler is logged and counted, and the subscription goes on.

        Args:
            subject: A subject or a pattern.
            handler: Called with each message.
            queue: The queue group; each message goes to one of its members.
            max_concurrent: 0 runs the handler on one message after another, in order, so it must not wait
                long; a plain function needs no task. A number runs up to that many handlers at once, each as
                a task, in no order.
            max_pending: How many messages may wait here; more are dropped, counted and logged.
            max_per_s: About so many messages a second are delivered, and at most that many at once. The
                broker drops the others, so that a flood costs this process nothing. A message may come twice.
                0: no limit.
            sampled: `max_per_s` takes samples of messages that are expected to be more; what the broker drops
                is then neither logged nor counted.
        """
        ...

    async def flush(self) -> None:
        """Returns when the broker has everything that was published before."""
        ...

    async def close(self) -> None:
        """Ends all subscriptions, waits for running handlers, flushes, disconnects. May be called twice."""
        ...
