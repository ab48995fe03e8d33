"""Random faults of a stack's processes, one at a time, each until everything is ready again."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

READY_S = 120.0  # until a part counts as not coming back
_POLL_S = 0.05
_NOTICED_S = 0.3  # leaders notice the death of a rank in milliseconds, and say so at once
_FROZEN_S = (0.5, 4.0)
# how often each is chosen, in relation to the others; redis and nats are the stores and the broker
WEIGHTS = {"rank": 6, "worker": 6, "router": 3, "kvstate": 2, "redis": 2, "gateway": 1, "nats": 1}
Services = Callable[[], Mapping[str, tuple[int, bool]]]  # process id and readiness of each, by name


@dataclass(slots=True)
class SoakFault:
    """One fault.

    Attributes:
        at_s: When, in seconds since the load began.
        part: What was hit.
        name: The service's name.
        kind: `kill` or `freeze`.
        repaired_s: Until everything was ready again; -1: not within `READY_S`.
    """

    at_s: float
    part: str
    name: str
    kind: str
    repaired_s: float = -1.0


async def inject(
    services: Services,
    is_serving: Callable[[float], Awaitable[bool]],
    chance: random.Random,
    began: float,
) -> SoakFault | None:
    """Injects one fault and waits until everything is ready; None if there was nothing to hit.

    Args:
        services: What runs now.
        is_serving: Whether the API is ready, and all groups have said after a moment that they are.
        began: When the load began, by `time.monotonic()`.
    """
    part = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    kind = "freeze" if part in ("rank", "worker") and chance.random() < 0.25 else "kill"
    target = find_target(services(), part, chance)
    if target is None:
        return None
    name, pid = target
    now = time.monotonic()
    fault = SoakFault(round(now - began, 3), part, name, kind)
    with suppress(ProcessLookupError):
        if kind == "freeze":
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(chance.uniform(*_FROZEN_S))
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL)
            while not _is_gone(pid) and time.monotonic() - now < READY_S:  # noqa: ASYNC110 (a process)
                await asyncio.sleep(_POLL_S)
    replaced = pid if kind == "kill" and part != "rank" else 0
    if await _until_ready(services, is_serving, now, name, replaced):
        fault.repaired_s = round(time.monotonic() - now, 3)
    return fault


def find_target(
    running: Mapping[str, tuple[int, bool]], part: str, chance: random.Random
) -> tuple[str, int] | None:
    """The name and the process of what is hit: a random ready service of a part, or a rank of a group."""
    kind = "worker" if part == "rank" else part
    names = sorted(name for name, (_, ready) in running.items() if ready and name.partition("-")[0] == kind)
    if not names:
        return None
    name = chance.choice(names)
    pid = running[name][0]
    if part == "rank":
        with suppress(psutil.NoSuchProcess):
            ranks = [one for one in psutil.Process(pid).children(recursive=True) if _is_rank(one)]
            return (name, chance.choice(ranks).pid) if ranks else None
        return None
    return name, pid


def _is_rank(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ryz-rank")
    except psutil.Error:
        return False


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def _until_ready(
    services: Services, is_serving: Callable[[float], Awaitable[bool]], since: float, name: str, replaced: int
) -> bool:
    """Waits until all is ready, with another process in place of `replaced` if that is not 0."""
    told_after = time.monotonic() + _NOTICED_S  # what was said just before may not know of the fault
    while time.monotonic() - since < READY_S:
        running = services()
        is_new = running.get(name, (replaced, False))[0] != replaced
        if is_new and all(ready for _, ready in running.values()) and await is_serving(told_after):
            return True
        await asyncio.sleep(_POLL_S)
    return False
