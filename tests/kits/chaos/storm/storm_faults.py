"""Kills and freezes services of a stack at random, and keeps a log that explains what clients see.

A service is killed only when it has been ready for `SETTLED_S`, because the supervisor gives up on services
that die repeatedly.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

import psutil

from tests.kits.e2e.stack import Stack

SETTLED_S = 2.4  # a service that was ready this long before it dies is restarted without a longer pause
BACK_S = 12.0  # until a killed service works as before, on a busy machine
POLL_S = 0.1
GROUP_AWAY_S = 4.0  # a group is assumed unavailable this long after a fault
BOTH_AWAY = 0.25  # share of the faults that hit a group while another one is unavailable and are carried out
# relative frequency of faults, and longest freeze in seconds
TARGETS = {
    "rank": (6, 3.0),
    "worker": (6, 2.5),
    "router": (3, 1.5),
    "kvstate": (2, 1.5),
    "gateway": (2, 1.0),
    "redis": (2, 1.5),
    "nats": (1, 1.0),
}


@dataclass(slots=True)
class Fault:
    """One fault.

    Attributes:
        part: What was hit.
        kind: `kill` or `freeze`.
        at: When it began.
        until: When it was over; after a kill, when the supervisor has had time for the restart.
    """

    part: str
    kind: str
    at: float
    until: float


class Faults:
    """Injects faults with `run`; `log` has the faults so far."""

    def __init__(self, stack: Stack, seed: int, *, ranks: bool = True) -> None:
        self.log: list[Fault] = []
        self._stack = stack
        self._chance = random.Random(seed)
        self._parts = [part for part in TARGETS if ranks or part != "rank"]
        self._ready: dict[str, tuple[int, float]] = {}  # by service: process id and ready since
        self._frozen: set[asyncio.Task[None]] = set()
        self._away: dict[str, float] = {}  # group -> unavailable until

    def counted(self) -> Counter[str]:
        """Number of faults by kind and part."""
        return Counter(f"{fault.kind} {fault.part}" for fault in self.log)

    def during(self, since: float, *parts: str, kind: str = "") -> list[Fault]:
        """Faults active at some time since `since`, limited to `parts` and `kind` if given."""
        return [
            fault
            for fault in self.log
            if fault.until >= since
            and (not parts or fault.part in parts)
            and (not kind or fault.kind == kind)
        ]

    async def run(self, seconds: float, pause_s: tuple[float, float] = (0.4, 1.6)) -> None:
        """Injects faults at random intervals of `pause_s`; at the end every frozen process runs again."""
        over = time.monotonic() + seconds
        watching = asyncio.create_task(self._watch())
        try:
            while time.monotonic() < over:
                await asyncio.sleep(self._chance.uniform(*pause_s))
                self._strike()
        finally:
            watching.cancel()
            await asyncio.gather(watching, *self._frozen, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            for service in self._stack.state.services:
                known = self._ready.get(service.name, (0, 0.0))[0]
                if not service.ready:
                    self._ready.pop(service.name, None)
                elif known != service.pid:
                    self._ready[service.name] = service.pid, time.monotonic()
            await asyncio.sleep(POLL_S)

    def _strike(self) -> None:
        part = self._chance.choices(self._parts, [TARGETS[one][0] for one in self._parts])[0]
        service = "worker" if part == "rank" else part
        names = [name for name in sorted(self._ready) if name.partition("-")[0] == service]
        if not names:
            return
        name, now = self._chance.choice(names), time.monotonic()
        pid, since = self._ready[name]
        if service == "worker":
            others = any(until > now for other, until in self._away.items() if other != name)
            if others and self._chance.random() > BOTH_AWAY:
                return
            self._away[name] = now + GROUP_AWAY_S
        try:
            process = psutil.Process(pid)
            if part == "rank":
                family = process.children(recursive=True)
                if not family:
                    return
                process = self._chance.choice(family)
            if self._chance.random() < 0.5:
                freeze = asyncio.create_task(self._freeze(process, part))
                self._frozen.add(freeze)
                freeze.add_done_callback(self._frozen.discard)
            elif part == "rank" or now - since > SETTLED_S:
                if part != "rank":
                    self._ready = {name: one for name, one in self._ready.items() if one[0] != pid}
                process.kill()
                self.log.append(Fault(part, "kill", now, now + BACK_S))
        except psutil.NoSuchProcess:
            return

    async def _freeze(self, process: psutil.Process, part: str) -> None:
        seconds = self._chance.uniform(0.1, TARGETS[part][1])
        now = time.monotonic()
        self.log.append(Fault(part, "freeze", now, now + seconds + BACK_S))
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
