"""The loads of groups, read from heartbeats while batches wait, and the requests that they leave room for."""

import time
from collections.abc import Callable, Iterable

from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import Heartbeat, Load

PER_S = 40  # heartbeats that are read: enough for loads, and little work
STALE_S = 2.0
AT_ONCE = 8  # requests that begin together: the next heartbeats show what they cost


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
                subjects.HEARTBEAT_ALL, self._beat, max_per_s=PER_S, sampled=True
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


def free_room(loads: Iterable[Load], running_here: int, *, max_running: int, share: float) -> int:
    """Returns how many more requests may begin.

    A group in which requests wait has no room. Else batches may fill `share` of its running places, and what
    interactive requests hold of these is not free.

    Args:
        loads: Of the groups that are ready, as their last heartbeats tell.
        running_here: Requests of batches that run in this gateway.
        max_running: The most of these.
        share: Of the groups' running places.
    """
    free = sum(max(0, int(load.max_running * share) - load.running) for load in loads if not load.waiting)
    return max(0, min(free, AT_ONCE, max_running - running_here))
