"""Sends the newest description of a group at each interval, with its number and evidence on the leader."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog
from msgspec.structs import replace

from shared import codec, subjects
from shared.bus.api import Bus
from shared.errors import Unavailable
from shared.messages import Heartbeat, Vitals

log = structlog.get_logger(__name__)
RUNNING = "running"
STOPPED_BEATS = 2  # heartbeats that say that the leader does not run; then there are none until it goes on

NewestDescription = tuple[Heartbeat, float] | None  # and when it was made, in monotonic seconds


class LeaderWatch(Protocol):
    """Judges whether the leader runs."""

    def assess(self, described_s: float, now: float) -> Vitals:
        """Returns the evidence; all but `late_ms`.

        Args:
            described_s: Age of the newest description.
            now: Monotonic seconds.
        """
        ...


class HeartbeatSender:
    """Sends until it is ended. Call all methods from one event loop.

    Args:
        interval_s: Seconds between two heartbeats.
        newest: Returns the newest description; None: there is none yet.
        watch: Judges the leader. Heartbeats stop while it does not run.
        first_seq: Number of the first heartbeat.

    Attributes:
        seq: Number of the next heartbeat.
        sent_at: When the last one went out, in monotonic seconds.
    """

    def __init__(
        self,
        interval_s: float,
        newest: Callable[[], NewestDescription],
        watch: LeaderWatch,
        first_seq: int = 0,
    ) -> None:
        self.seq = first_seq
        self.sent_at = 0.0
        self._interval_s = interval_s
        self._newest = newest
        self._watch = watch
        self._woken = asyncio.Event()
        self._ended = False
        self._stopped_beats, self._sent_state = 0, RUNNING

    def wake(self) -> None:
        """Sends without waiting for the interval's end."""
        self._woken.set()

    def end(self) -> None:
        """Sends once more, and then no more."""
        self._ended = True
        self._woken.set()

    async def run(self, bus: Bus, after_each: Callable[[], None] = lambda: None) -> None:
        """Sends until it is ended; extra heartbeats do not change the average interval.

        Args:
            after_each: Called after each interval, also if nothing was sent.
        """
        loop = asyncio.get_running_loop()
        due, late_s = loop.time(), 0.0
        while not self._ended:
            self._woken.clear()
            await self._send(bus, late_s)
            after_each()
            now, soon = loop.time(), self._interval_s / 4
            if due < now + soon:
                due = max(due, now - soon) + self._interval_s
            timer = loop.call_at(due, self._woken.set)
            await self._woken.wait()
            timer.cancel()
            late_s = max(0.0, loop.time() - due)
        await self._send(bus, 0.0)
        after_each()

    async def _send(self, bus: Bus, late_s: float) -> None:
        """Sends one now, if there is a description; goes on if the broker is away."""
        newest = self._newest()
        if newest is None:
            return
        heartbeat, described_at = newest
        now = time.monotonic()
        vitals = self._watch.assess(now - described_at, now)
        if vitals.leader != self._sent_state:
            self._stopped_beats, self._sent_state = 0, vitals.leader
            _log_change(vitals)
        if vitals.leader != RUNNING:
            if self._stopped_beats >= STOPPED_BEATS:
                return
            self._stopped_beats += 1
        heartbeat = replace(heartbeat, seq=self.seq, vitals=replace(vitals, late_ms=round(1000 * late_s)))
        try:
            await bus.publish(subjects.heartbeat(heartbeat.group), codec.encode(heartbeat))
        except Unavailable:
            log.debug("heartbeat not sent, the broker is away", seq=heartbeat.seq)
            self._stopped_beats = 0  # it was not announced
        else:
            self.sent_at = now
        self.seq += 1


def _log_change(vitals: Vitals) -> None:
    if vitals.leader == RUNNING:
        log.warning("the leader runs again, heartbeats go on")
        return
    log.warning("the leader does not run, heartbeats stop", state=vitals.leader,
                described_ms=vitals.described_ms, starved_ms=vitals.starved_ms,
                cpu_ms=vitals.cpu_ms)  # fmt: skip
