"""The contract of a bus. Implementations connect; what is published where is decided elsewhere.

Delivery is at most once and in order per publisher and subject, as with core NATS. What must not be lost is
numbered and asked for again by those who use the bus.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shared.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Message:
    """A message that arrived. `no_responders` marks the broker's own answer to a publish that nobody got."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    no_responders: bool = False


Handler = Callable[[Message], Awaitable[object]]  # what it returns is ignored


class NoResponders(Unavailable):
    """Nobody listens on the subject of a request."""


class RequestTimedOut(Unavailable):
    """A request had no answer in time."""


class Subscription(Protocol):
    """A running subscription."""

    async def unsubscribe(self) -> None:
        """Stops deliveries; handlers that already run go on. Calling it twice is fine."""
        ...

    async def drain(self) -> None:
        """Stops deliveries, but what the broker had sent here by then is still handled before it returns.

        At most some seconds; without a broker, or after them, it ends like `unsubscribe`.
        """
        ...


class Bus(Protocol):
    """Publish and subscribe. All methods may be called from one event loop only.

    Subjects follow NATS: tokens with dots between them, `*` for one token, `>` for the rest. Every method
    but `close` raises `Unavailable` (reason `broker_unavailable`) while there is no connection and none comes
    back in the time that the method may wait; `publish` never waits for one.
    """

    @property
    def max_payload(self) -> int:
        """The largest payload in bytes; `publish` and `request` raise `RequestTooLarge` above it."""
        ...

    @property
    def connected(self) -> bool:
        """True while there is a broker to talk to."""
        ...

    @property
    def restored_at(self) -> float:
        """When a lost connection was last restored, by the running loop's clock; -inf: it never was lost.

        Others lost theirs too, and may come back some seconds later: until then a silent peer means little.
        """
        ...

    def new_inbox(self) -> str:
        """A subject prefix that nobody else has. Append `.name` for subjects below it."""
        ...

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends one message and does not wait for anybody.

        With `reply` and no subscriber on `subject`, a message with `no_responders` arrives on `reply`.
        """
        ...

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Sends one message and returns the first answer.

        Raises `NoResponders` at once when nobody listens, `RequestTimedOut` after `timeout_s`.
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
    ) -> Subscription:
        """Delivers messages to `handler` until unsubscribed; ready when it returns.

        queue: members of one queue group share the messages, each goes to one of them.
        max_concurrent: 0 runs the handler on one message after another, in order (it must not wait long);
            more runs up to that many at once, each as a task, in no order.
        max_pending: messages that may wait here; above it they are dropped, counted and logged.
        max_per_s: about so many messages a second are delivered, at most that many at once; the broker drops
            those above it, whoever sent them, so that a flood costs this process nothing. A message may come
            twice. 0: no limit.

        An exception of the handler is logged and counted; the subscription lives on.
        """
        ...

    async def flush(self) -> None:
        """Returns when the broker has everything that was published before."""
        ...

    async def close(self) -> None:
        """Stops all subscriptions, waits for handlers that run, flushes, disconnects. May be called twice."""
        ...
