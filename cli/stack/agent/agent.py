"""The agent of a host: brings commands to the supervisor, and reports to the routers.

It decides nothing: a controller in the routers does. What is commanded is checked once more here, since the
agent alone knows what runs at this moment.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from cli.console import CommandError, StartReport
from cli.stack.agent.daemon_thread import in_daemon_thread
from cli.stack.agent.group_memory import group_bytes
from cli.stack.agent.hosted import CommandRefused, HostedModels
from cli.stack.agent.lost_files import lost_files
from cli.stack.agent.offers import AgentPlan, RunningGroup, make_offers
from cli.stack.fleet.entry import ModelEntry
from cli.stack.fleet.one_more import read_entry
from cli.stack.supervision.process import ServiceSpec
from cli.stack.supervision.restarts import MISCONFIGURED
from cli.stack.supervision.stack import Stack
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint, call
from shared.bus.nats import NatsBus
from shared.codec import encode
from shared.errors import InvalidRequest, RyzError
from shared.host.cores_and_memory import available_bytes
from shared.messages import (
    DrainGroup,
    Draining,
    GroupCommanded,
    KVLimited,
    LimitKV,
    ManageModel,
    ModelManaged,
    PutModel,
    StartGroup,
    StopGroup,
)

REPORT_S = 1.0
MEASURE_S = 4.0
SETTLE_S, SETTLE_POLL_S = 1.5, 0.2  # for memory that a smaller KV cache gives back
DRAIN_S = 600.0  # for requests that a group runs when it is to end
ASK_S = 2.0
ASK_KV_S = 1.0
READY_POLL_S = 0.05
CONNECT_S, RECONNECT_S = 60.0, 5.0


class HostAgent:
    """Call `begin` before the stack is started, and `close` before it ends.

    Args:
        reserve_bytes: Memory that groups leave free.
    """

    def __init__(self, plan: AgentPlan, stack: Stack, report: StartReport, reserve_bytes: int) -> None:
        self._plan = plan
        self._stack = stack
        self._note = report.note
        self._reserve_bytes = reserve_bytes
        instance_id, offers = f"{plan.host}-{time.time_ns():x}", make_offers(plan, int(time.time()))
        self._hosted = HostedModels(plan.host, instance_id, offers, plan.plan.budget_bytes)
        self._changed, self._measure_soon = asyncio.Event(), asyncio.Event()
        self._bus: NatsBus | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for leader in plan.running:
            group = self._hosted.note_started(leader, time.monotonic())
            stack.may_go(leader.name, partial(self._on_gone, group.name))
            self._spawn(self._await_ready(group, leader))

    def begin(self, url: str) -> None:
        """Connect to the broker as soon as it is there, take commands, and report until `close`."""
        self._spawn(self._serve(url))

    async def _serve(self, url: str) -> None:
        self._spawn(self._measure())
        async with AsyncExitStack() as closing:
            bus = self._bus = await self._connect(url)
            closing.push_async_callback(bus.close)
            await self._listen(bus)
            while True:
                self._changed.clear()
                await self._publish(bus)
                with suppress(TimeoutError):
                    async with asyncio.timeout(REPORT_S):
                        await self._changed.wait()

    async def _connect(self, url: str) -> NatsBus:
        while True:
            try:
                return await NatsBus.connect(url, name=f"host/{self._plan.host}", connect_wait_s=CONNECT_S)
            except RyzError as error:
                self._note(f"models are not loaded on demand while the broker is away: {error.message}")
                await asyncio.sleep(RECONNECT_S)

    async def close(self) -> None:
        """End what it does; groups that are ending go on, and end with the stack."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, bus: NatsBus) -> None:
        endpoint, host = Endpoint(bus), self._plan.host
        await bus.subscribe(subjects.start_group(host), endpoint.handler(StartGroup, self._on_start))
        await bus.subscribe(subjects.stop_group(host), endpoint.handler(StopGroup, self._on_stop))
        await bus.subscribe(subjects.limit_hosted_kv(host), endpoint.handler(LimitKV, self._on_limit))
        await bus.subscribe(subjects.MANAGE_MODEL, endpoint.handler(ManageModel, self._on_manage))
        await bus.subscribe(subjects.PUT_MODEL, endpoint.handler(PutModel, self._on_put))

    async def _on_start(self, command: StartGroup, _: Message) -> GroupCommanded:
        try:
            leader = self._hosted.start(command, time.monotonic())
        except CommandRefused as refused:
            return GroupCommanded(refused=str(refused))
        group = self._hosted.note_started(leader, time.monotonic())
        self._note(f"{leader.name} is started for model {leader.model} ({command.reason})")
        self._stack.add(leader, partial(self._on_gone, group.name))
        self._spawn(self._await_ready(group, leader))
        self._changed.set()
        return GroupCommanded(group=group.name)

    async def _on_stop(self, command: StopGroup, _: Message) -> GroupCommanded:
        try:
            group = self._hosted.stop(command)
        except CommandRefused as refused:
            return GroupCommanded(refused=str(refused))
        leader = self._hosted.offers[group.model].leaders[group.name]
        self._note(f"{leader.name} is ended, of model {group.model} ({command.reason})")
        self._spawn(self._stack.end(leader.name, partial(self._drain, group.name), DRAIN_S))
        self._changed.set()
        return GroupCommanded(group=group.name)

    async def _on_limit(self, command: LimitKV, _: Message) -> KVLimited:
        try:
            group = self._hosted.resize(command)
        except CommandRefused as refused:
            return KVLimited(group=command.group, refused=str(refused))
        said = await self._ask_kv(group.name, group.kv.asked_bytes)
        if said is None:
            group.kv.cancel()
            self._changed.set()
            return KVLimited(group=group.name, refused="its leader does not answer")
        self._hosted.note_kv(group.name, said)
        if not group.kv.confirm(said.limit_bytes, time.monotonic()):
            self._changed.set()
            return KVLimited(group=group.name, refused="its requests need what it has")
        self._spawn(self._settle(group))
        return said

    async def _settle(self, group: RunningGroup) -> None:
        """Let a new limit count: a lower one when its memory is measured to be free, or stays taken."""
        until = time.monotonic() + SETTLE_S
        while group.kv.asked_bytes < group.kv.limit_bytes:
            await self._measure_groups([group.name])
            if self._hosted.is_as_planned(group.name) or time.monotonic() > until:
                break
            await asyncio.sleep(SETTLE_POLL_S)
        group.kv.settle()
        self._changed.set()

    async def _ask_kv(self, group: str, limit_bytes: int) -> KVLimited | None:
        """Tell a leader its limit; None if it does not answer."""
        if self._bus is None:
            return None
        limit = LimitKV(group=group, limit_bytes=limit_bytes)
        try:
            return await call(self._bus, subjects.limit_kv(group), limit, KVLimited, timeout_s=ASK_KV_S)
        except RyzError:
            return None

    async def _repeat_limit(self, group: RunningGroup) -> None:
        """Tell a leader its limit again, which it may have lost in a restart, and note what it says."""
        said = await self._ask_kv(group.name, group.kv.repeated_bytes)
        if said is not None:
            self._hosted.note_kv(group.name, said)

    async def _on_manage(self, command: ManageModel, _: Message) -> ModelManaged | None:
        offer = self._hosted.offers.get(command.model)
        was_sought = offer is not None and offer.is_sought
        managed = self._hosted.manage(command)
        if offer is not None and offer.is_sought and not was_sought:
            self._spawn(self._find(offer.model.entry))
        self._changed.set()
        return managed

    async def _on_put(self, command: PutModel, _: Message) -> ModelManaged | None:
        """Offer one more model, once it is found.

        Raises:
            InvalidRequest: The entry is wrong, or its files are not here; names this host.
        """
        if command.host not in {"", self._plan.host} or self._plan.find_more is None:
            return None
        try:
            entry = read_entry(command.entry)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, **error.data | {"host": self._plan.host}) from None
        refused = self._hosted.add(entry, int(time.time()))
        if not refused:
            self._note(f"model {entry.name} is added: {entry.source}")
            self._spawn(self._find(entry))
        return ModelManaged(model=entry.name, host=self._plan.host, refused=refused)

    async def _find(self, entry: ModelEntry) -> None:
        assert self._plan.find_more is not None
        try:
            # a fetch may take long, and is not waited for when the stack ends
            served = len(self._hosted.offers) - 1
            found = await in_daemon_thread(partial(self._plan.find_more, entry, served))
        except Exception as error:  # its files may be anything, and change meanwhile
            why = str(error) if isinstance(error, CommandError) else f"{type(error).__name__}: {error}"
            self._note(f"model {entry.name} cannot be served: {why}")
            self._hosted.note_not_found(entry, why)
        else:
            if self._hosted.sought(entry) is not None:
                self._hosted.note_found(entry, found, self._plan.more_leaders(found.model))
        self._changed.set()

    async def _drain(self, group: str) -> bool:
        """Ask a leader to end what it has; False if it does not answer."""
        assert self._bus is not None
        asked = DrainGroup(timeout_ms=round(DRAIN_S * 1000))
        try:
            await call(self._bus, subjects.drain(group), asked, Draining, timeout_s=ASK_S)
        except RyzError:
            return False
        return True

    async def _await_ready(self, group: RunningGroup, leader: ServiceSpec) -> None:
        while self._hosted.groups.get(group.name) is group:
            if self._stack.ready_at(leader.name) is not None:
                self._hosted.note_ready(group.name, time.monotonic())
                self._changed.set()
                self._measure_soon.set()
                return
            await asyncio.sleep(READY_POLL_S)

    def _on_gone(self, group: str, why: str, code: int) -> None:
        model = self._hosted.offers[self._hosted.groups[group].model].model
        if why:
            why = lost_files(model) or why
        self._hosted.note_gone(group, why, time.monotonic(), final=code == MISCONFIGURED)
        self._changed.set()

    async def _measure(self) -> None:
        """Measure the memory of groups, and what the system has left."""
        while True:
            self._measure_soon.clear()
            groups = [group for group in self._hosted.groups.values() if group.load_s and not group.stopping]
            await asyncio.gather(*(self._repeat_limit(group) for group in groups))
            await self._measure_groups(list(self._hosted.groups))
            self._hosted.free_bytes = max(0, available_bytes() - self._reserve_bytes)
            with suppress(TimeoutError):
                async with asyncio.timeout(MEASURE_S):
                    await self._measure_soon.wait()

    async def _measure_groups(self, names: Sequence[str]) -> None:
        leaders = {
            name: self._stack.pid(self._hosted.offers[group.model].leaders[name].name)
            for name in names
            if (group := self._hosted.groups.get(name)) is not None
        }
        measured = await asyncio.to_thread(group_bytes, leaders)
        for name, num_bytes in measured.items():
            if name in self._hosted.groups:
                self._hosted.groups[name].measured_bytes = num_bytes

    async def _publish(self, bus: NatsBus) -> None:
        try:
            await bus.publish(subjects.HOST_REPORT, encode(self._hosted.report(time.monotonic())))
        except RyzError:  # the broker is away; the next report tells the same
            return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note(f"the agent of this host has a fault, and models may not be loaded: {error!r}")
