"""Hears the loads of groups from their heartbeats, while there are batches that want to know."""

import time
from collections.abc import Callable

from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import Heartbeat, Load

PER_S = 40  # heartbeats that are read: enough for loads, and little work
STALE_S = 2.0


class GroupLoads:
    """Knows the last load of each ready group.

    Args:
        bus: The connection.
        clock: Monotonic seconds.
    """

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._heard: dict[str, tuple[float, Load]] = {}
        self._subscription: Subscription | None = None

    async def listen(self, *, on: bool) -> None:
        """Begins to hear heartbeats, or ends it."""
        if on and self._subscription is None:
            self._subscription = await self._bus.subscribe(
                subjects.HEARTBEAT_ALL, self._beat, max_per_s=PER_S
            )
        elif not on and self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            self._heard.clear()
            await subscription.unsubscribe()

    def loads(self) -> list[Load]:
        """The loads of the groups that were heard of late."""
        now = self._clock()
        return [load for heard, load in self._heard.values() if now - heard < STALE_S]

    async def _beat(self, message: Message) -> None:
        try:
            beat = decode(message.data, Heartbeat)
        except InvalidRequest:
            return  # the routers count it
        if beat.state == "ready":
            self._heard[beat.group] = self._clock(), beat.load
        else:
            self._heard.pop(beat.group, None)
