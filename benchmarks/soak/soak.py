"""Runs load, faults and samples beside each other for the time of a soak."""

import asyncio
import random
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx

from benchmarks.failover.fleet import FleetProbe
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.lib.stack import RunningStack, worker_groups
from benchmarks.soak.faults import SoakFault, inject
from benchmarks.soak.figures import figures
from benchmarks.soak.load import MixedLoad
from benchmarks.soak.plan import SoakPlan
from benchmarks.soak.report import write_report
from benchmarks.soak.samples import Sample, take_samples
from shared.bus.nats import NatsBus

_SAMPLE_S = 10.0
_ASK_S = 2.0
_FRESH_S = 1.0
_START_S = 30.0


class Soak:
    """One soak of a stack that runs.

    Args:
        stack: With `services_now`, as faults need it.
        fleet: Hears the groups' heartbeats.
    """

    def __init__(self, stack: RunningStack, plan: SoakPlan, progress: Progress, fleet: FleetProbe) -> None:
        self._fleet = fleet
        self.faults: list[SoakFault] = []
        self.samples: list[Sample] = []
        self.load = MixedLoad(
            stack.url, stack.model, clients=plan.clients, tokens=plan.tokens, seed=plan.seed
        )
        self._stack = stack
        self._plan = plan
        self._progress = progress
        self._groups = len(worker_groups(stack.pids))

    async def run(self) -> dict[str, Any]:
        """Runs for the time of the plan, or until Ctrl-C, and returns the figures.

        Raises:
            BenchError: The stack does not answer before there is any fault, or the load ended by an error.
        """
        async with httpx.AsyncClient(base_url=self._stack.url, timeout=_ASK_S) as http:
            self._http = http
            deadline = time.monotonic() + _START_S
            while not await self._is_serving(0.0):
                if time.monotonic() > deadline:
                    raise BenchError("the stack is not ready, although nothing has happened yet")
                await asyncio.sleep(0.1)
            loading = asyncio.create_task(self.load.run())
            sampling = asyncio.create_task(self._sample())
            began = time.monotonic()
            try:
                await self._strike(began + self._plan.hours * 3600)
            except asyncio.CancelledError:  # Ctrl-C; a second one ends it without a report
                task = asyncio.current_task()
                if task is None or not task.uncancel():
                    raise
            finally:
                for one in (loading, sampling):
                    one.cancel()
                ends = await asyncio.gather(loading, sampling, return_exceptions=True)
            for end in ends:
                if isinstance(end, Exception):
                    raise BenchError(f"load or samples ended early: {end!r}")
            seconds = round(time.monotonic() - began, 1)
        return {"seconds": seconds, **figures(seconds, self.load.endings, self.faults, self.samples)}

    async def _strike(self, over: float) -> None:
        chance, every = random.Random(self._plan.seed), self._plan.every
        while (left := over - time.monotonic()) > 0:
            await asyncio.sleep(min(left, every * chance.uniform(2 / 3, 4 / 3)))
            if time.monotonic() >= over:
                return
            fault = await inject(self._stack.services_now, self._is_serving, chance, self.load.began)
            if fault is None:
                continue
            self.faults.append(fault)
            failed = sum(one.failed for one in self.load.endings)
            back = f"{fault.repaired_s:.1f} s" if fault.repaired_s >= 0 else "never"
            self._progress(
                f"{fault.kind} {fault.name} ({fault.part}), all ready again after {back}; "
                f"{len(self.load.endings)} requests, {failed} failed"
            )

    async def _sample(self) -> None:
        while True:
            at_s = time.monotonic() - self.load.began
            self.samples += await asyncio.to_thread(take_samples, self._stack.services_now(), at_s)
            await asyncio.sleep(_SAMPLE_S)

    async def _is_serving(self, since: float) -> bool:
        """Whether the gateway is ready, and all groups have said so after that moment and lately."""
        fresh = max(since, time.monotonic() - _FRESH_S)
        if len(self._fleet.beats) < self._groups or not all(
            self._fleet.ready(group, fresh) for group in self._fleet.beats
        ):
            return False
        with suppress(httpx.HTTPError):
            answer = await self._http.get("/ready")
            return answer.is_success
        return False


async def measure(
    stack: RunningStack, plan: SoakPlan, progress: Progress, about: dict[str, Any]
) -> dict[str, Any]:
    """Runs the soak and writes its report.

    Args:
        about: Facts of the machine and the commit.
    """
    async with AsyncExitStack() as cleanup:

        async def connect(user: str) -> NatsBus:
            bus = await NatsBus.connect(stack.nats_urls[user], name="soak", local=True)
            cleanup.push_async_callback(bus.close)
            return bus

        fleet = FleetProbe(await connect("router"), await connect("cli"))
        await fleet.listen()
        soak = Soak(stack, plan, progress, fleet)
        report = {**await soak.run(), **about}
    write_report(plan.output, report, soak.load.endings, soak.faults, soak.samples)
    return report
