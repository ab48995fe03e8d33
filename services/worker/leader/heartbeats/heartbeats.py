"""Heartbeats: the state and load of the group, many times a second, with evidence on the leader.

The leader's event loop describes the group. A carrier sends the newest description at each interval: in a
running leader that is a process of its own (`process_carrier.py`), so that neither Python's interpreter lock
nor the leader's share of the cores delays heartbeats.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from shared.messages import Heartbeat

STOP_WAIT_S = 2.0  # for the last heartbeat and the end of the connection
DESCRIBE_SHARE = 0.02  # of the event loop's time that descriptions may take, however long the queues are


class HeartbeatCarrier(Protocol):
    """Sends the newest description at each interval.

    It goes on while the broker is away. It stops when the description is older than the limit for event loops
    that hang, and goes on when there is a newer one. Numbers of heartbeats grow without end.
    """

    async def start(self, first: Heartbeat) -> None:
        """Sends this description, and begins. May raise `Unavailable` when there is no broker."""
        ...

    def describe(self, heartbeat: Heartbeat) -> None:
        """Replaces the description; does nothing before `start` and after `stop`."""
        ...

    def send_soon(self) -> None:
        """Sends without waiting for the interval's end; does nothing before `start` and after `stop`."""
        ...

    async def stop(self) -> None:
        """Sends once more, and ends; does nothing without `start`, and at a second call."""
        ...


class Heartbeats:
    """The heartbeats of a leader.

    Call `start`, then run `describe_forever` as a task, `beat` after changes that routers must know at once,
    and `stop` at the end.

    Args:
        interval_s: Seconds between two descriptions.
        stale_s: Age of a description beyond which the carrier does not send it.
        describe: Makes a heartbeat; it gets its number when it is sent.
    """

    def __init__(
        self, carrier: HeartbeatCarrier, interval_s: float, stale_s: float, describe: Callable[[], Heartbeat]
    ) -> None:
        self._carrier = carrier
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._describe = describe

    async def start(self) -> None:
        """Begins to send. Raises `Unavailable` when there is no broker."""
        await self._carrier.start(self._describe())

    async def describe_forever(self) -> None:
        """Describes the group until cancelled: at each interval, or more rarely where that takes long."""
        while True:
            began = time.perf_counter()
            self._carrier.describe(self._describe())
            took = time.perf_counter() - began
            await asyncio.sleep(min(max(self._interval_s, took / DESCRIBE_SHARE), self._stale_s / 4))

    async def beat(self) -> None:
        """Sends a heartbeat now."""
        self._carrier.describe(self._describe())
        self._carrier.send_soon()

    async def stop(self) -> None:
        """Sends a last heartbeat, and ends."""
        self._carrier.describe(self._describe())
        await self._carrier.stop()
