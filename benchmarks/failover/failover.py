"""Kills or freezes ranks and leaders under streams: is every stream whole, and how long did it pause?

Two groups compute a model. As soon as both are ready and have streams again, a random rank or leader is
killed, or a leader is frozen for a while. A time without faults afterwards counts false alarms.
"""

import asyncio
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.failover.failover_figures import Fault, Victim, figures
from benchmarks.failover.failover_fleet import FailoverError, Fleet, mean_fetch_s
from benchmarks.failover.failover_streams import Readers, Reading, make_requests, read, same
from shared.bus.nats import NatsBus
from shared.client import Completion, InferenceClient
from shared.messages import GenerateRequest

_SETTLE_S = 0.5
_STREAM_S = 60.0
_FROZEN_S = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """faults: how many; streams: read at the same time, of so many tokens each; seed: of the victims.

    freezes: leaders are stopped for a while, instead of anybody killed. calm_s: without faults, afterwards.
    """

    model: str
    faults: int = 100
    streams: int = 32
    tokens: int = 128
    seed: int = 0
    freezes: bool = False
    calm_s: float = 0.0


async def measure(urls: Mapping[str, str], plan: Plan, progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs it all on a stack of two groups; `urls` are the broker's, by user. See `figures`.

    Raises:
        FailoverError: the stack does not come back, or does not say twice the same without any fault.
    """
    bus = await NatsBus.connect(urls["gateway"], name="bench", local=True)
    asks = await NatsBus.connect(urls["cli"], name="bench", local=True)
    hears = await NatsBus.connect(urls["router"], name="bench", local=True)
    client, fleet = InferenceClient(bus), Fleet(hears, asks)
    await client.start()
    await fleet.listen()
    try:
        requests = make_requests(plan.model, plan.streams, plan.tokens)
        progress("without faults")
        expected, calm = await _undisturbed(client, requests)
        gc.collect()
        gc.freeze()  # what is there stays; collections look at what comes from here on
        readers = Readers(client, requests, expected, _STREAM_S)
        faults, chance = [], random.Random(plan.seed)
        for number in range(plan.faults):
            faults.append(await _fault(fleet, chance, plan.streams // 4, freezes=plan.freezes))
            done = "frozen" if plan.freezes else "killed"
            progress(f"{faults[-1].victim} of {faults[-1].group} {done}, {number + 1} of {plan.faults}")
        before = client.stats.lost
        if plan.calm_s:
            progress(f"{plan.calm_s:g} s without faults")
            await asyncio.sleep(plan.calm_s)
        false_alarms = client.stats.lost - before
        await asyncio.wait_for(readers.stop(), _STREAM_S + 5)
        report = figures(faults, readers, calm)
        names = ("lost", "resumed", "refused", "republished", "gaps", "resends", "ignored")
        counted = {name: getattr(client.stats, name) for name in names}
        calm_report = {"seconds": plan.calm_s, "streams_moved": false_alarms}
        shape = {"concurrency": plan.streams, "tokens": plan.tokens, "freezes": plan.freezes}
        return report | {"without_faults": calm_report, "client": counted} | shape
    finally:
        gc.unfreeze()
        await client.close()
        await hears.close()
        await asks.close()
        await bus.close()


async def _undisturbed(
    client: InferenceClient, requests: list[GenerateRequest]
) -> tuple[list[Completion], list[Reading]]:
    """The right answers, by two runs that agree; and the second run's readings."""
    first: list[Completion] = []
    while True:
        told = await asyncio.gather(*(read(client, one, n, _STREAM_S) for n, one in enumerate(requests)))
        answers = [one.answer for one in told if one.answer is not None]
        if len(answers) < len(told):
            raise FailoverError(next(one.error for one in told if one.answer is None))
        if first and not all(same(a, b) for a, b in zip(first, answers, strict=True)):
            raise FailoverError("the same requests got other answers without any fault")
        if first:
            return answers, told
        first = answers


async def _fault(fleet: Fleet, chance: random.Random, least: int, *, freezes: bool) -> Fault:
    """Does something to somebody once each group has so many sequences, and waits until it is back."""
    groups = await fleet.await_streams(least)
    await asyncio.sleep(_SETTLE_S * chance.random())
    group = chance.choice(sorted(groups))
    leader, ranks = groups[group]
    victim: Victim = "leader" if freezes or chance.random() < 1 / 3 else "rank"
    pid = leader if victim == "leader" else chance.choice(ranks)
    fetched = await fleet.fetches()
    fault = Fault(victim, group, time.monotonic())
    if freezes:
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_FROZEN_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        thawed = time.monotonic()
        await fleet.await_back(group, thawed)
        fault.back_s = time.monotonic() - thawed
    else:
        os.kill(pid, signal.SIGKILL)
        await fleet.await_away(group, fault.at)
        await fleet.await_back(group, time.monotonic())  # a heartbeat of before may have come after the fault
        fault.back_s = time.monotonic() - fault.at
    fault.fetch_s = mean_fetch_s(fetched, await fleet.fetches(), without=group)
    return fault
