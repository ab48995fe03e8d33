"""An agent of a host without processes: its groups are leaders in the test, and loads take a set time."""

import asyncio
import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.bus.nats import NatsBus
from shared.codec import encode
from shared.messages import GroupCommanded, HostedGroup, HostReport, OfferedModel, StartGroup, StopGroup
from tests.kits.router.live import Leader

REPORT_S = 0.2


@dataclass
class Commanded:
    """A command that came, when, and the answer."""

    command: StartGroup | StopGroup
    at: float
    refused: str = ""


@dataclass
class HostAgent:
    """Reports what it offers and runs, and carries out commands of the newest controller."""

    bus: NatsBus
    host: str
    offers: list[OfferedModel]
    budget_bytes: int
    load_s: float = 0.2
    commands: list[Commanded] = field(default_factory=list)
    groups: dict[str, HostedGroup] = field(default_factory=dict)
    leaders: dict[str, Leader] = field(default_factory=dict)
    epoch: int = 0
    _seq: int = 0
    _started: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        endpoint = Endpoint(self.bus)
        await self.bus.subscribe(subjects.start_group(self.host), endpoint.handler(StartGroup, self._start))
        await self.bus.subscribe(subjects.stop_group(self.host), endpoint.handler(StopGroup, self._stop))
        self._tasks.append(asyncio.create_task(self._report_forever()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for leader in self.leaders.values():
            await leader.stop()

    async def report(self) -> None:
        self._seq += 1
        said = HostReport(
            host=self.host,
            instance_id=f"agent-{self.host}",
            seq=self._seq,
            budget_bytes=self.budget_bytes,
            models=self.offers,
            groups=list(self.groups.values()),
            epoch=self.epoch,
        )
        await self.bus.publish(subjects.HOST_REPORT, encode(said))

    def started(self) -> list[StartGroup]:
        """The commands that started a group."""
        done = (one.command for one in self.commands if not one.refused)
        return [command for command in done if isinstance(command, StartGroup)]

    async def _report_forever(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_S)

    async def _start(self, command: StartGroup, _: Message) -> GroupCommanded:
        there = sum(group.model == command.model for group in self.groups.values())
        refused = self._stale(command.epoch) or (f"{there} groups run" if there != command.running else "")
        self.commands.append(Commanded(command, time.monotonic(), refused))
        if refused:
            return GroupCommanded(refused=refused)
        name = f"{self.host}-{command.model}-{self._started}"
        self._started += 1
        offer = next(one for one in self.offers if one.card.name == command.model)
        size = offer.next_bytes if there else offer.first_bytes
        self.groups[name] = HostedGroup(group=name, model=command.model, phase="starting", charged_bytes=size)
        self._tasks.append(asyncio.create_task(self._load(name, command.model)))
        return GroupCommanded(group=name)

    async def _load(self, name: str, model: str) -> None:
        await self.report()
        await asyncio.sleep(self.load_s)
        self.leaders[name] = leader = Leader(self.bus, name, model)
        await leader.start()
        load_ms = int(self.load_s * 1000)
        self.groups[name] = replace(self.groups[name], phase="running", age_ms=load_ms, load_ms=load_ms)
        await self.report()

    async def _stop(self, command: StopGroup, _: Message) -> GroupCommanded:
        refused = self._stale(command.epoch) or ("" if command.group in self.leaders else "no such group")
        self.commands.append(Commanded(command, time.monotonic(), refused))
        if refused:
            return GroupCommanded(refused=refused)
        self.groups[command.group] = replace(self.groups[command.group], phase="stopping")
        self._tasks.append(asyncio.create_task(self._end(command.group)))
        return GroupCommanded(group=command.group)

    async def _end(self, name: str) -> None:
        leader = self.leaders.pop(name)
        leader.state = "draining"
        await self.report()
        await asyncio.sleep(self.load_s)
        await leader.stop()
        del self.groups[name]
        await self.report()

    def _stale(self, epoch: int) -> str:
        if epoch < self.epoch:
            return f"epoch {epoch} is over, {self.epoch} has begun"
        self.epoch = epoch
        return ""
