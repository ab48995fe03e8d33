"""What a leader tells routers of requests of services outside that count as running."""

from typing import Any

import pytest

from shared import subjects
from shared.bus.api import Message
from shared.bus.endpoint import Endpoint
from shared.codec import decode, encode
from shared.messages import Cancel, Done, FrameBatch, GroupDown, RunningCounted, RunningReport
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, null_engine

ROUTER, OTHER = "_INBOX.router.a.running", "_INBOX.router.b.running"
LONG = {"max_tokens": 1000}


class Router:
    """Hears reports on a subject, and says who counts their requests."""

    def __init__(self, bus: MemoryBus, counted_by: str = ROUTER) -> None:
        self.bus, self.counted_by = bus, counted_by
        self.heard: list[RunningReport] = []
        self.order: list[str] = []

    async def start(self, subject: str = ROUTER) -> "Router":
        self.subscription = await self.bus.subscribe(
            subject, Endpoint(self.bus).handler(RunningReport, self.hear)
        )
        return self

    async def hear(self, report: RunningReport, _: Message) -> RunningCounted:
        self.heard.append(report)
        self.order += [f"ended {one.request_id}" for one in report.ended]
        return RunningCounted(counted_by=self.counted_by)

    @property
    def ended(self) -> list[tuple[str, int]]:
        return [(one.request_id, one.attempt) for report in self.heard for one in report.ended]

    def named(self) -> list[str]:
        """What the last report names as running."""
        return sorted(one.request_id for one in self.heard[-1].running)


@pytest.fixture
async def router(memory_bus: MemoryBus) -> Router:
    return await Router(MemoryBus(memory_bus.broker)).start()


async def ask(kit: Kit, name: str, counted_by: str = ROUTER, **fields: Any) -> None:
    await kit.ask(chat(name, tenant="acme", **fields), outside=True, counted_by=counted_by)


async def test_an_end_is_told_before_the_last_frame(memory_bus: MemoryBus, router: Router) -> None:
    async with Kit(memory_bus) as kit:
        listening = MemoryBus(memory_bus.broker)

        async def hear(message: Message) -> None:
            frames = decode(message.data, FrameBatch).frames
            router.order += ["done" for frame in frames if isinstance(frame, Done)]

        await listening.subscribe(kit.inbox, hear)
        await ask(kit, "r", sampling={"max_tokens": 3})
        await kit.end_of("r")
        await until(lambda: len(router.order) == 2)
        assert router.order == ["ended r", "done"]
        (report,) = router.heard
        assert (report.group, report.instance_id, report.ended[0].tenant) == ("g0", "i", "acme")


async def test_requests_that_no_router_counts_are_not_reported(memory_bus: MemoryBus, router: Router) -> None:
    async with Kit(memory_bus) as kit:
        await ask(kit, "r", counted_by="")
        await kit.end_of("r")
        await kit.leader.parts.running.report_running()
        assert not router.heard


@pytest.mark.parametrize("how", ["cancel", "late", "given up"])
async def test_every_end_is_told_once(memory_bus: MemoryBus, router: Router, how: str) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.02)) as kit:
        headers = {subjects.HEADER_TIMEOUT: "300"} if how == "late" else None
        request = chat("r", tenant="acme", sampling=LONG)
        await kit.ask(request, headers, outside=True, counted_by=ROUTER)
        await until(lambda: bool(kit.frames["r"]))
        if how == "cancel":
            await kit.bus.publish(subjects.CANCEL_ALL, encode(Cancel(request_id="r", tenant="acme")))
        elif how == "given up":
            down = GroupDown(group="g0", instance_id="i", reason="silent")
            await kit.bus.publish(subjects.GROUP_DOWN, encode(down))
        await kit.end_of("r")
        await until(lambda: bool(router.ended))
        await kit.leader.parts.running.report_running()
        assert router.ended == [("r", 0)]


async def test_what_is_refused_is_told_as_ended(memory_bus: MemoryBus, router: Router) -> None:
    async with Kit(memory_bus) as kit:
        await kit.ask(
            chat("r", tenant="acme"), {subjects.HEADER_TIMEOUT: "-1"}, outside=True, counted_by=ROUTER
        )
        await until(lambda: router.ended == [("r", 0)])
        kit.leader.parts.orchestrator.drain()
        await ask(kit, "r2")
        await until(lambda: router.ended[1:] == [("r2", 0)])


async def test_what_runs_is_reported_until_it_ends(memory_bus: MemoryBus, router: Router) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.02)) as kit:
        for name in ("a", "b"):
            await ask(kit, name, sampling=LONG)
            await until(lambda name=name: bool(kit.frames[name]))  # type: ignore[misc]
        await kit.leader.parts.running.report_running()
        assert router.named() == ["a", "b"]
        await kit.bus.publish(subjects.CANCEL_ALL, encode(Cancel(request_id="a", tenant="acme")))
        await until(lambda: router.ended == [("a", 0)])
        await kit.leader.parts.running.report_running()
        assert router.named() == ["b"]


async def test_a_copy_of_what_runs_is_no_end_and_another_routers_copy_is(
    memory_bus: MemoryBus, router: Router
) -> None:
    other = await Router(MemoryBus(memory_bus.broker), OTHER).start(OTHER)
    async with Kit(memory_bus, null_engine(delay_s=0.02)) as kit:
        await ask(kit, "r", sampling=LONG)
        await until(lambda: bool(kit.frames["r"]))
        await ask(kit, "r", sampling=LONG)
        await ask(kit, "r", OTHER, sampling=LONG)
        await until(lambda: other.ended == [("r", 0)])
        assert not router.ended
        await ask(kit, "r", attempt=1, sampling=LONG)  # the later attempt has a unit of its own
        await until(lambda: router.ended == [("r", 0)])


async def test_a_copy_of_what_has_ended_is_told_as_ended(memory_bus: MemoryBus, router: Router) -> None:
    async with Kit(memory_bus) as kit:
        await ask(kit, "r")
        await kit.end_of("r")
        await ask(kit, "r")
        await until(lambda: router.ended == [("r", 0)] * 2)


async def test_another_router_counts_what_a_lost_one_did(memory_bus: MemoryBus, router: Router) -> None:
    bus = MemoryBus(memory_bus.broker)
    async with Kit(memory_bus, null_engine(delay_s=0.02)) as kit:
        await ask(kit, "r", sampling=LONG)
        await until(lambda: bool(kit.frames["r"]))
        await router.subscription.unsubscribe()
        await kit.leader.parts.running.report_running()  # no router is there: it is tried again
        heir = await Router(bus, OTHER).start(subjects.OUTSIDE_RUNNING)
        direct = await Router(bus, OTHER).start(OTHER)
        await kit.leader.parts.running.report_running()
        assert heir.named() == ["r"]
        await kit.leader.parts.running.report_running()
        assert direct.named() == ["r"]
        await kit.bus.publish(subjects.CANCEL_ALL, encode(Cancel(request_id="r", tenant="acme")))
        await until(lambda: direct.ended == [("r", 0)])


async def test_an_end_during_the_takeover_is_told_to_the_router_that_took_over(
    memory_bus: MemoryBus, router: Router
) -> None:
    bus = MemoryBus(memory_bus.broker)
    direct = await Router(bus, OTHER).start(OTHER)
    async with Kit(memory_bus, null_engine(delay_s=0.02)) as kit:
        await ask(kit, "r", sampling=LONG)
        await until(lambda: bool(kit.frames["r"]))
        await router.subscription.unsubscribe()

        async def take_over(message: Message) -> None:
            (one,) = decode(message.data, RunningReport).running
            kit.leader.parts.table.cancel_request(one.request_id, "", tenant="acme")
            await bus.publish(message.reply, encode(RunningCounted(counted_by=OTHER)))

        await bus.subscribe(subjects.OUTSIDE_RUNNING, take_over)
        await kit.leader.parts.running.report_running()
        await until(lambda: direct.ended == [("r", 0)])
