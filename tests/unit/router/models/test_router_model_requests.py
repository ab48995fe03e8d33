"""Requests for models that are not loaded: what they are answered, and for how long they count as demand."""

import asyncio

import pytest

from services.router.dispatch import Dispatcher
from services.router.incoming import read
from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.messages import Failed, FrameBatch, GenerateRequest
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import Controlled
from tests.kits.router.fleet import beat
from tests.kits.router.hosts import hosted, offer

INBOX = "_INBOX.test.r"


class Asked(Controlled):
    """A router whose answers to requests are kept."""

    async def ask(self, model: str = "m", request_id: str = "r", attempt: int = 0) -> Failed | None:
        """Dispatches a request; returns its refusal, or None if a group got it."""
        answers: list[Message] = []

        async def hear(message: Message) -> None:
            answers.append(message)

        inbox = await self.bus.subscribe(INBOX, hear)
        request = GenerateRequest(
            request_id=request_id, model=model, prompt="hi", attempt=attempt, reply_to=INBOX
        )
        message = Message(subjects.generate(model), encode(request))
        await self.dispatcher.dispatch(read(message, self.now), self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        await inbox.unsubscribe()
        if not answers:
            return None
        (frame,) = decode(answers[0].data, FrameBatch).frames
        assert isinstance(frame, Failed)
        return frame

    async def begin(self) -> "Asked":
        self.dispatcher = Dispatcher(self.context)
        self.now += 60.0  # it has heard all groups that there are
        return self


@pytest.fixture
async def world(memory_bus: MemoryBus) -> Asked:
    return await Asked(memory_bus).begin()


async def test_a_request_is_demand_until_a_group_gets_it(world: Asked) -> None:
    world.report(offer("m"))
    refused = await world.ask()
    assert refused is not None
    assert refused.data["reason"] == "waking"
    assert world.context.models_changed.is_set()
    world.context.models_changed.clear()
    await world.ask()
    await world.ask(request_id="r2")
    assert not world.context.models_changed.is_set()  # it was wanted already
    assert world.models.demand.own(world.now) == {"m": 2}
    world.report(offer("m"), groups=[hosted("g0", "m")])
    world.context.fleet.observe(beat(1), world.now)
    assert await world.ask() is None
    assert world.models.demand.own(world.now) == {"m": 1}


async def test_a_resumed_request_waits_as_well(world: Asked) -> None:
    world.report(offer("m"), groups=[hosted("g0", "m")])
    world.context.fleet.observe(beat(1), world.now)
    world.context.fleet.mark_lost("g0", "silent", world.now)
    refused = await world.ask(attempt=1)
    assert refused is not None
    assert (refused.code, refused.data["reason"]) == ("unavailable", "waking")
    assert world.models.demand.own(world.now) == {"m": 1}


async def test_requests_that_are_refused_for_good_are_no_demand(world: Asked) -> None:
    world.report(offer("m", failure="no disk", retry_ms=4000), offer("n", wish="unload"))
    failed, unloaded = await world.ask("m"), await world.ask("n")
    assert failed is not None
    assert unloaded is not None
    assert (failed.data["reason"], unloaded.data["reason"]) == ("model_failed", "model_unloaded")
    assert 3.0 < failed.data["retry_after_s"] < 5.0
    assert "retry_after_s" not in unloaded.data
    assert world.models.demand.own(world.now) == {}


async def test_a_model_that_is_not_offered_is_not_found_though_all_others_are_asleep(world: Asked) -> None:
    world.report(offer("m"))
    refused = await world.ask("other")
    assert refused is not None
    assert (refused.code, refused.data["param"]) == ("model_not_found", "model")
    assert refused.message.endswith(": m")


async def test_a_router_that_has_just_started_calls_no_model_unknown(memory_bus: MemoryBus) -> None:
    world = Asked(memory_bus)
    world.dispatcher = Dispatcher(world.context)
    world.report(offer("m"))
    refused = await world.ask("other")
    assert refused is not None
    assert refused.code == "unavailable"


async def test_without_hosts_a_model_of_groups_that_are_away_is_refused_as_ever(world: Asked) -> None:
    world.context.fleet.observe(beat(1, state="recovering"), world.now)
    refused = await world.ask()
    assert refused is not None
    assert (refused.code, refused.data["reason"]) == ("unavailable", "no_group")
    assert world.models.demand.own(world.now) == {}
