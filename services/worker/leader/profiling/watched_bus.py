"""A bus whose messages are recorded while a profile asks for it; otherwise a call is passed on as it is."""

import time
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from shared.bus.api import Bus, Handler, Message, Subscription
from shared.bus.delivery import is_plain
from shared.messages import RecordedMessage

MAX_MESSAGES = 20_000


class BusWatch:
    """What all watched connections of a leader record.

    Attributes:
        is_on: Whether messages are recorded.
        left_out: Messages beyond the bound.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.left_out = 0
        self._messages: list[RecordedMessage] = []

    def begin(self) -> None:
        """Begins to record."""
        self._messages, self.left_out, self.is_on = [], 0, True

    def end(self) -> list[RecordedMessage]:
        """Ends the recording and returns it."""
        self.is_on = False
        found, self._messages = self._messages, []
        return found

    def note(self, subject: str, outgoing: bool, begin_ns: int, num_bytes: int) -> None:
        """Records a message that was sent or handled just now."""
        if not self.is_on:
            return
        if len(self._messages) >= MAX_MESSAGES:
            self.left_out += 1
            return
        length_ns = time.monotonic_ns() - begin_ns
        self._messages.append(
            RecordedMessage(
                subject=subject,
                outgoing=outgoing,
                begin_ns=begin_ns,
                length_ns=length_ns,
                num_bytes=num_bytes,
            )
        )


class WatchedBus:
    """Implements `Bus` over another one."""

    def __init__(self, bus: Bus, watch: BusWatch) -> None:
        self._bus = bus
        self._watch = watch

    @property
    def max_payload(self) -> int:
        """See `Bus`."""
        return self._bus.max_payload

    @property
    def connected(self) -> bool:
        """See `Bus`."""
        return self._bus.connected

    @property
    def restored_at(self) -> float:
        """See `Bus`."""
        return self._bus.restored_at

    def new_inbox(self) -> str:
        """See `Bus`."""
        return self._bus.new_inbox()

    def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, None]:
        """See `Bus`."""
        sending = self._bus.publish(subject, data, reply=reply, headers=headers)
        return self._timed(sending, subject, len(data)) if self._watch.is_on else sending

    def publish_now(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        """See `Bus`."""
        if not self._watch.is_on:
            return self._bus.publish_now(subject, data, reply=reply, headers=headers)
        begin_ns = time.monotonic_ns()
        sent = self._bus.publish_now(subject, data, reply=reply, headers=headers)
        if sent:
            self._watch.note(subject, True, begin_ns, len(data))
        return sent

    def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, Message]:
        """See `Bus`."""
        if self._watch.is_on:
            self._watch.note(subject, True, time.monotonic_ns(), len(data))
        return self._bus.request(subject, data, timeout_s=timeout_s, headers=headers)

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
        """See `Bus`."""

        def deliver(message: Message) -> Awaitable[object] | None:
            return self._handled(handler, message) if self._watch.is_on else handler(message)

        async def deliver_waiting(message: Message) -> None:
            waits = deliver(message)
            if waits is not None:
                await waits

        return await self._bus.subscribe(
            subject,
            deliver if is_plain(handler) else deliver_waiting,
            queue=queue,
            max_concurrent=max_concurrent,
            max_pending=max_pending,
            max_per_s=max_per_s,
            sampled=sampled,
        )

    async def flush(self) -> None:
        """See `Bus`."""
        await self._bus.flush()

    async def close(self) -> None:
        """See `Bus`."""
        await self._bus.close()

    async def _timed(self, sending: Coroutine[Any, Any, None], subject: str, num_bytes: int) -> None:
        begin_ns = time.monotonic_ns()
        try:
            await sending
        finally:
            self._watch.note(subject, True, begin_ns, num_bytes)

    async def _handled(self, handler: Handler, message: Message) -> object:
        begin_ns = time.monotonic_ns()
        try:
            waits = handler(message)
            return await waits if waits is not None else None
        finally:
            self._watch.note(message.subject, False, begin_ns, len(message.data))
