"""Messages of outside users that come too often, are too large or are no valid requests."""

import asyncio
from typing import Any

import msgpack
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.router.context import RouterContext
from services.router.domain.groups.fleet import Fleet
from services.router.domain.policies import make_policy
from services.router.domain.policies.costs import Costs
from services.router.metrics import RouterMetrics
from services.router.outside.gate import ANSWERS_S
from services.router.settings import RouterSettings
from services.router.state import RouterState
from shared.bus import Message
from shared.client.calls.limit_leases import LimitLeases
from shared.codec import decode
from shared.flow.token_bucket import BURST_S
from shared.messages import FrameBatch, Limits, StoredAccount, TenantRecord
from shared.subjects import caller_of
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.handlers import router_handlers
from tests.kits.tenants.limit_services import LimitServices
from tests.kits.waiting import until

SUBJECT = "ryz.v1.tenant.t.u.generate.demo"


class World:
    """A router without groups, with a fixed clock. It records the router's answers."""

    def __init__(self, bus: MemoryBus, *, accounts_read: bool = True, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.answers: list[Message] = []
        made = RouterSettings.model_validate(settings)
        self.context = RouterContext(
            bus,
            Fleet(made.fleet_limits()),
            make_policy("least_loaded"),
            Costs(),
            RouterState(made),
            RouterMetrics(self.registry, "least_loaded"),
            made,
            lambda: 100.0,
            lambda _: 0.0,
        )
        if accounts_read:
            self.context.state.accounts.replace_all([], 0)
        self.bus = bus
        self.outside = MemoryBus(bus.broker)
        self.leases = LimitLeases(bus, self.context.state.accounts, "r")
        handlers = router_handlers(self.context, self.outside, self.leases)
        self.handlers, self.losses, self.running, self.dispatcher = handlers

    async def start(self) -> "World":
        await self.bus.subscribe("_INBOX.u.>", self.hear)
        return self

    async def hear(self, message: Message) -> None:
        self.answers.append(message)

    async def ask(self, number: int, data: bytes, subject: str = SUBJECT) -> None:
        for _ in range(number):
            await self.handlers.on_outside(Message(subject, data, reply="_INBOX.u.r"))
        for _ in range(200):  # until the answers have arrived
            await asyncio.sleep(0)

    def reasons(self) -> list[str]:
        frames = [decode(answer.data, FrameBatch).frames[0] for answer in self.answers]
        return [str(frame.data.get("reason", frame.code)) for frame in frames]  # type: ignore[union-attr]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"ryz_router_{name}_total", labels) or 0.0


def packed(**fields: Any) -> bytes:
    data: bytes = msgpack.packb({"request_id": "r", "model": "demo", "prompt": "x", **fields})
    return data


async def test_of_refusals_that_come_too_often_a_part_is_answered(memory_bus: MemoryBus) -> None:
    """When each refusal was read, answered and logged, requests of gateways waited for seconds."""
    world = await World(memory_bus).start()
    await world.ask(20_000, b"\x80")
    answered = ANSWERS_S * BURST_S
    assert len(world.answers) == answered
    assert world.metric("unanswered_refusals", reason="invalid") == 500 * BURST_S - answered
    assert world.metric("unanswered_refusals", reason="user_rate") == 20_000 - 500 * BURST_S
    # another user gets an answer
    await world.ask(1, b"\x80", SUBJECT.replace(".u.", ".v."))
    assert world.metric("unanswered_refusals", reason="invalid") == 500 * BURST_S - answered


async def test_refused_requests_are_not_read(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World(memory_bus, router_outside_rps=1.0).start()
    reads = []
    real = "services.router.outside.gate"
    for name in ("read", "sender"):
        module = __import__(real, fromlist=[name])
        done = getattr(module, name)

        def counted(*args: Any, _done: Any = done, _name: str = name, **more: Any) -> Any:
            reads.append(_name)
            return _done(*args, **more)

        monkeypatch.setattr(f"{real}.{name}", counted)
    await world.ask(5_000, packed(reply_to="_INBOX.u.f"))
    assert reads.count("read") == BURST_S
    assert reads.count("sender") == ANSWERS_S * BURST_S


async def test_a_large_message_counts_as_several(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus, router_outside_rps=100.0).start()
    await world.ask(10, packed(prompt="x" * 1_000_000))
    assert world.reasons().count("user_rate") == 10 - 3, "62 of 200 each"


async def test_choices_count(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus, router_outside_rps=100.0).start()
    await world.ask(40, packed(sampling={"n": 16}))
    assert world.reasons().count("user_rate") == 40 - 13, "16 of 200 each"


async def test_answers_that_cannot_be_sent_are_one_line(memory_bus: MemoryBus) -> None:
    """A router that the broker had disconnected once logged 18,000 lines in six seconds."""
    world = await World(memory_bus).start()
    memory_bus.broker.stop()
    with capture_logs() as lines:
        await world.ask(50, b"\x80")
    assert [line["event"] for line in lines].count("answer not sent") == 1
    assert world.metric("events", event="answer_not_sent") == 50


async def test_outsiders_are_read_on_their_own_connection(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus).start()
    await world.handlers.take_requests()
    sender = MemoryBus(memory_bus.broker)
    await sender.publish(SUBJECT, b"\x80", reply="_INBOX.u.r")
    await sender.publish("ryz.v1.generate.demo", b"\x80", reply="_INBOX.g.r")
    for _ in range(20):
        await asyncio.sleep(0)
    assert (world.outside.stats.received, world.outside.stats.published) == (1, 0)
    await sender.close()


async def test_requests_count_for_the_limits_of_their_tenant(memory_bus: MemoryBus) -> None:
    world = await World(memory_bus).start()
    services = LimitServices(MemoryBus(memory_bus.broker), lambda: 1_790_000_000.0)
    await services.start()
    tenant = caller_of(SUBJECT)
    assert tenant is not None
    record = TenantRecord(tenant=tenant.tenant, limits=Limits(requests_per_minute=3))
    world.context.state.accounts.replace_all([StoredAccount(record=record, revision=1)], 1)
    keeping = asyncio.create_task(world.leases.keep())
    await world.ask(5, packed(reply_to="_INBOX.u.f"))
    await until(lambda: len(world.answers) == 5)
    keeping.cancel()
    assert world.reasons().count("tenant_requests_per_minute") == 2
    again = packed(reply_to="_INBOX.u.f", attempt=1)
    await world.ask(1, again)
    assert world.reasons().count("tenant_requests_per_minute") == 3, (
        "it counts, whatever its sender says of it"
    )
