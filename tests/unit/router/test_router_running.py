"""Running requests of bus users at a router: refused beyond the limit, counted until their ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import call
from shared.codec import decode, encode
from shared.errors import Unavailable
from shared.messages import (
    CountedRequest,
    GenerateRequest,
    Heartbeat,
    Limits,
    Load,
    ModelCard,
    RunningCounted,
    RunningReport,
    StoredAccount,
    TenantRecord,
    Work,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.tenants.limit_services import LimitServices
from tests.kits.waiting import until
from tests.unit.router.test_router_outside_gate import SUBJECT, World, packed

NOW = 100.0  # the clock of `World`
AGAIN = SUBJECT.replace(".generate.", ".again.")


class Limited(World):
    """A router with a group `g0` for a tenant that may have two requests running."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.works: list[Work] = []

    async def begin(self, running: int = 2) -> "Limited":
        await self.start()
        await self.running.listen()
        self.services = LimitServices(MemoryBus(self.bus.broker))
        await self.services.start()
        record = TenantRecord(tenant="t", limits=Limits(running=running))
        self.context.state.accounts.replace_all([StoredAccount(record=record, revision=1)], 1)
        await self.bus.subscribe(subjects.work("g0"), self.take)
        self.context.fleet.observe(
            Heartbeat(
                group="g0",
                instance_id="i0",
                seq=1,
                interval_ms=50,
                state="ready",
                model=ModelCard(name="demo", context_length=1024),
                load=Load(max_running=64, max_waiting=64),
            ),
            NOW,
        )
        return self

    async def take(self, message: Message) -> None:
        self.works.append(decode(message.data, Work))

    async def ask_for(self, *names: str, **fields: object) -> None:
        for name in names:
            await self.ask(1, packed(request_id=name, reply_to="_INBOX.u.f", **fields))

    async def ask_all_for(self, *names: str) -> None:
        """The requests come on the subject that all routers read."""
        for name in names:
            data = packed(request_id=name, reply_to="_INBOX.u.f")
            await self.handlers.on_outside_again(Message(AGAIN, data, reply="_INBOX.u.r"))

    async def report(self, subject: str = "", **fields: list[CountedRequest]) -> RunningCounted:
        report = RunningReport(group="g0", instance_id="i0", **fields)
        return await call(
            self.bus, subject or self.works[0].counted_by, report, RunningCounted, timeout_s=5.0
        )


def counted(name: str, attempt: int = 0) -> CountedRequest:
    return CountedRequest(tenant="t", request_id=name, attempt=attempt)


@pytest.fixture
async def world(memory_bus: MemoryBus) -> AsyncIterator[Limited]:
    made = await Limited(memory_bus).begin()
    keeping = asyncio.create_task(made.leases.keep())
    yield made
    keeping.cancel()


async def test_beyond_the_limit_requests_are_refused_until_one_ends(world: Limited) -> None:
    await world.ask_for("a", "b", "c")
    assert world.reasons() == ["tenant_running"]
    assert [bool(work.counted_by) for work in world.works] == [True, True]
    await world.report(ended=[counted("a")])
    await world.ask_for("d", "e")
    assert world.reasons() == ["tenant_running"] * 2
    assert len(world.works) == 3


async def test_the_limit_of_a_tenant_without_one_is_none(memory_bus: MemoryBus) -> None:
    world = await Limited(memory_bus).begin(running=0)
    await world.ask_for("a", "b", "c")
    assert [work.counted_by for work in world.works] == ["", "", ""]


async def test_a_request_that_reaches_no_group_counts_no_longer(world: Limited) -> None:
    for number in range(5):
        await world.ask_for(f"r{number}", model="other")
    assert set(world.reasons()) == {"no_group"}
    await world.ask_for("a", "b")
    assert len(world.works) == 2


async def test_nor_does_one_that_nothing_took(world: Limited) -> None:
    await world.ask_for("a")
    assert len(world.running.units) == 1
    await world.handlers.on_undelivered(Message(f"{world.dispatcher.inbox}.1.t=a-0", b"", no_responders=True))
    assert not len(world.running.units), "there is no other group"
    await until(lambda: len(world.answers) == 1)


async def test_a_copy_is_the_same_request(world: Limited) -> None:
    await world.ask_for("a", "b", "a", "a")
    assert not world.answers
    assert len(world.works) == 4


async def test_a_copy_by_way_of_all_routers_is_not_refused_for_what_runs(world: Limited) -> None:
    """Another router may have sent it to a group: an answer would end it for its sender."""
    await world.ask_for("a", "b")
    await world.ask_all_for("c", "b")
    await until(lambda: len(world.works) == 3)
    assert not world.answers
    assert [decode(work.request, GenerateRequest).request_id for work in world.works] == ["a", "b", "b"]
    assert world.metric("unanswered_refusals", reason="tenant_running") == 1


async def test_a_lost_group_ends_its_requests(world: Limited) -> None:
    await world.ask_for("a", "b")
    assert world.context.fleet.mark_lost("g0", "no_responders", NOW)
    await world.losses.publish_losses()
    assert not len(world.running.units)


async def test_requests_of_a_router_that_is_gone_are_taken_over(world: Limited) -> None:
    """They run already, so nothing refuses them; they count like the others."""
    running = [counted(name) for name in ("x", "y", "z")]
    answer = await world.report(subjects.OUTSIDE_RUNNING, running=running)
    assert len(world.running.units) == 3
    # the store hears of it, though this router has never taken any unit
    await until(lambda: world.services.store.running("t::running:running") != {})
    await world.ask_for("a")
    assert world.reasons() == ["tenant_running"]
    await world.report(answer.counted_by, ended=running[:2])
    await until(lambda: world.leases.party("t", "").leases[0].had == 1)
    await world.ask_for("b")
    assert len(world.works) == 1
    again = await world.report(answer.counted_by, running=[running[2]])
    assert (again, len(world.running.units)) == (answer, 2)


async def test_a_router_that_has_read_no_limits_takes_nothing_over(memory_bus: MemoryBus) -> None:
    """It would count the requests for no limit; the leader asks again."""
    world = World(memory_bus, accounts_read=False)
    await world.running.listen()
    report = RunningReport(group="g0", instance_id="i0", running=[counted("x")])
    with pytest.raises(Unavailable):
        await call(memory_bus, subjects.OUTSIDE_RUNNING, report, RunningCounted, timeout_s=5.0)
    assert not len(world.running.units)


async def test_a_report_that_is_none_is_counted(world: Limited) -> None:
    await world.bus.publish(subjects.OUTSIDE_RUNNING, b"\x80")
    await until(lambda: world.metric("events", event="bad_running_report") == 1)


def test_the_work_of_services_is_as_before() -> None:
    work = Work(request=b"", route={"group": "g", "reason": "r"}, reply_to="x")  # type: ignore[arg-type]
    assert b"counted_by" not in encode(work)
