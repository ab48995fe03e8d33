"""A carrier of heartbeats on the running event loop, for buses that live in the test's process."""

import asyncio
import time

from services.worker.leader.heartbeats.heartbeats import STOP_WAIT_S
from services.worker.leader.heartbeats.sender import HeartbeatSender, NewestDescription
from shared.bus.api import Bus
from shared.messages import Heartbeat, Vitals


class DescriptionAge:
    """Judges by the age of the description alone: for a leader that cannot be observed.

    Args:
        stale_s: How long the event loop may stand still.
    """

    def __init__(self, stale_s: float) -> None:
        self._stale_s = stale_s

    def assess(self, described_s: float, now: float) -> Vitals:
        """See `LeaderWatch.assess`."""
        leader = "hung" if described_s > self._stale_s else "running"
        return Vitals(leader=leader, described_ms=round(1000 * described_s))


class LoopCarrier:
    """Implements `HeartbeatCarrier` over a given bus.

    Args:
        interval_s: Seconds between two heartbeats.
        stale_s: Age of a description beyond which it is not sent.
    """

    def __init__(self, bus: Bus, interval_s: float, stale_s: float) -> None:
        self._bus = bus
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._newest: tuple[Heartbeat, float] | None = None
        self._sender: HeartbeatSender | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, first: Heartbeat) -> None:
        """See `HeartbeatCarrier.start`."""
        self._newest = (first, time.monotonic())
        self._sender = HeartbeatSender(
            self._interval_s, self._newest_description, DescriptionAge(self._stale_s)
        )
        self._task = asyncio.create_task(self._sender.run(self._bus), name="heartbeats")
        await asyncio.sleep(0)  # the first one goes out before anything else happens

    def describe(self, heartbeat: Heartbeat) -> None:
        """See `HeartbeatCarrier.describe`."""
        self._newest = (heartbeat, time.monotonic())

    def send_soon(self) -> None:
        """See `HeartbeatCarrier.send_soon`."""
        if self._sender is not None:
            self._sender.wake()

    async def stop(self) -> None:
        """See `HeartbeatCarrier.stop`."""
        sender, task, self._sender, self._task = self._sender, self._task, None, None
        if sender is not None and task is not None:
            sender.end()
            await asyncio.wait({task}, timeout=STOP_WAIT_S)

    def _newest_description(self) -> NewestDescription:
        return self._newest
