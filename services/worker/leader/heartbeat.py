"""Heartbeats: what the group is and how busy it is, many times a second.

They go over a bus connection of their own, so that frames that pile up do not make the group look dead.
"""

import asyncio
from collections.abc import Callable

import structlog

from shared import codec, subjects
from shared.bus.api import Bus
from shared.errors import Unavailable
from shared.messages import Heartbeat

log = structlog.get_logger(__name__)


class Heartbeats:
    """Run `run` as a task; call `beat` when something changed that routers are to know at once.

    describe: makes the heartbeat with a number.
    """

    def __init__(self, bus: Bus, interval_s: float, describe: Callable[[int], Heartbeat]) -> None:
        self._bus = bus
        self._interval_s = interval_s
        self._describe = describe
        self._seq = 0

    async def run(self) -> None:
        """Beats until cancelled; the interval is kept on average."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.beat()
            due = max(due + self._interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def beat(self) -> None:
        """Sends one now. A broker that is away is no reason to stop."""
        heartbeat = self._describe(self._seq)
        self._seq += 1
        try:
            await self._bus.publish(subjects.heartbeat(heartbeat.group), codec.encode(heartbeat))
        except Unavailable:
            log.debug("heartbeat not sent, the broker is away", seq=heartbeat.seq)
