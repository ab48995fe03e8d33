"""Kills or freezes ranks and leaders under streams: is every stream whole, and how long did it pause?

Two groups compute a model. As soon as both are ready and have streams again, a random rank or leader is
killed, or a leader is frozen for a while. A time without faults afterwards counts false alarms.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.failover_figures import Fault, Victim, figures
from benchmarks.failover_streams import Readers, Reading, make_requests, read, same
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import Completion, InferenceClient
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest, Heartbeat, ServiceStatus, StatusQuery

_READY_S = 30.0
_SETTLE_S = 0.6  # both groups have streams again
_STATUS_S = 0.5
_STREAM_S = 60.0
_SILENT_S = 0.25
_FROZEN_S = 1.5


class FailoverError(Exception):
    """There is no figure; the text says why."""


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


@dataclass(slots=True)
class Fleet:
    """What heartbeats and statuses say of the groups.

    hears: the broker as one who may hear heartbeats; asks: as one who may ask for statuses.
    """

    hears: NatsBus
    asks: NatsBus
    beats: dict[str, tuple[Heartbeat, float]] = field(default_factory=dict)

    async def listen(self) -> None:
        """Hears heartbeats from here on."""
        await self.hears.subscribe(subjects.HEARTBEAT_ALL, self._beat)

    async def _beat(self, message: Message) -> None:
        try:
            heartbeat = decode(message.data, Heartbeat)
        except InvalidRequest:
            return
        self.beats[heartbeat.group] = heartbeat, time.monotonic()

    def ready(self, group: str, since: float = 0.0) -> bool:
        """Whether the group says that it is ready, and has said so after that moment."""
        heartbeat, at = self.beats.get(group, (None, 0.0))
        return heartbeat is not None and heartbeat.state == "ready" and at > since

    async def await_away(self, group: str, since: float) -> None:
        """Waits until the group says that it is not ready, or nothing any more."""
        while True:
            heartbeat, at = self.beats[group]
            if (at > since and heartbeat.state != "ready") or time.monotonic() - at > _SILENT_S:
                return
            await asyncio.sleep(0.005)
            if time.monotonic() > since + _READY_S:
                raise FailoverError(f"group {group} did not notice within {_READY_S:g} s")

    async def await_back(self, group: str, since: float) -> None:
        """Waits until the group says that it is ready, after that moment."""
        while not self.ready(group, since):
            await asyncio.sleep(0.005)
            if time.monotonic() > since + _READY_S:
                raise FailoverError(f"group {group} did not come back within {_READY_S:g} s")

    async def pids(self) -> dict[str, tuple[int, list[int]]]:
        """The process of each group's leader, and those of its ranks."""
        found: dict[str, tuple[int, list[int]]] = {}
        inbox = self.asks.new_inbox()

        async def told(message: Message) -> None:
            status = decode(message.data, ServiceStatus)
            if status.service == "worker":
                ranks = [int(rank["pid"]) for rank in status.detail["ranks"]]
                found[str(status.detail["group"])] = status.pid, ranks

        subscription = await self.asks.subscribe(inbox, told)
        await self.asks.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
        deadline = time.monotonic() + _STATUS_S
        while len(found) < len(self.beats) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await subscription.unsubscribe()
        return found


async def measure(urls: Mapping[str, str], plan: Plan, progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs it all on a stack of two groups; `urls` are the broker's, by user. See `figures`.

    Raises:
        FailoverError: the stack does not come back, or does not say twice the same without any fault.
    """
    bus = await NatsBus.connect(urls["gateway"], name="bench")
    asks = await NatsBus.connect(urls["cli"], name="bench")
    hears = await NatsBus.connect(urls["router"], name="bench")
    client, fleet = InferenceClient(bus), Fleet(hears, asks)
    await client.start()
    await fleet.listen()
    try:
        requests = make_requests(plan.model, plan.streams, plan.tokens)
        progress("without faults")
        expected, calm = await _undisturbed(client, requests)
        readers = Readers(client, requests, expected, _STREAM_S)
        faults, chance = [], random.Random(plan.seed)
        for number in range(plan.faults):
            faults.append(await _fault(fleet, chance, freezes=plan.freezes))
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


async def _fault(fleet: Fleet, chance: random.Random, *, freezes: bool) -> Fault:
    """Does something to somebody, and waits until the group is back."""
    groups = await _all_ready(fleet)
    await asyncio.sleep(_SETTLE_S + chance.random() * 0.4)
    group = chance.choice(sorted(groups))
    leader, ranks = groups[group]
    victim: Victim = "leader" if freezes or chance.random() < 1 / 3 else "rank"
    pid = leader if victim == "leader" else chance.choice(ranks)
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
        await fleet.await_back(group, fault.at)
        fault.back_s = time.monotonic() - fault.at
    return fault


async def _all_ready(fleet: Fleet) -> dict[str, tuple[int, list[int]]]:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if len(fleet.beats) >= 2 and all(fleet.ready(group, time.monotonic() - 1) for group in fleet.beats):
            groups = await fleet.pids()
            if len(groups) == len(fleet.beats):
                return groups
        await asyncio.sleep(0.02)
    raise FailoverError(f"the groups were not all ready within {_READY_S:g} s")
