"""Models that some tenants may use: to others they are as models that do not exist."""

import pytest
from msgspec.structs import replace

from services.router.domain.models.offered import AWAY_S, SILENT_S
from shared import subjects
from shared.bus import Message
from shared.client.calls.limit_leases import LimitLeases
from shared.codec import decode, encode
from shared.messages import (
    Failed,
    FrameBatch,
    GenerateRequest,
    Heartbeat,
    ListModels,
    ModelCard,
    ModelList,
    OfferedModel,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import Controlled
from tests.kits.router.fleet import beat
from tests.kits.router.handlers import router_handlers
from tests.kits.router.hosts import offer

OURS, THEIRS = "ours", "theirs"


def beat_of(tenants: list[str], name: str = "g0", instance: str = "i1", model: str = "m") -> Heartbeat:
    heartbeat = beat(name=name, instance=instance, model=model)
    return replace(heartbeat, model=replace(heartbeat.model, tenants=tenants))


def limited_offer(name: str = "m") -> OfferedModel:
    return replace(offer(name), card=ModelCard(name=name, context_length=1024, tenants=[OURS]))


class Told(Controlled):
    """A router that hears groups, hosts and requests, as its subscriptions hand them on."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.context.state.accounts.replace_all([], 0)
        leases = LimitLeases(bus, self.context.state.accounts, "r")
        self.handlers = router_handlers(self.context, bus, leases).requests
        self.now += 60.0  # it has heard all groups that there are

    async def hear(self, heartbeat: Heartbeat) -> None:
        if (waits := self.handlers.on_heartbeat(heartbeat, Message("", b""))) is not None:
            await waits

    async def refusal(self, model: str, tenant: str, *, outside: bool = False) -> tuple[str, str]:
        """The code and the message of a request's refusal; empty if a group got it."""
        frames: list[Message] = []

        async def keep(message: Message) -> None:
            frames.append(message)

        caller = subjects.OutsideService(tenant, "user") if outside else None
        inbox = "_INBOX.user.r" if outside else "_INBOX.r"
        answers = await self.bus.subscribe(inbox, keep)
        named = "default" if outside else tenant
        request = GenerateRequest(
            request_id=f"{model}-{tenant}", model=model, prompt="hi", tenant=named, reply_to=inbox
        )
        message = Message(subjects.generate(model, caller), encode(request))
        handle = self.handlers.on_outside if outside else self.handlers.on_generate
        if (waits := handle(message)) is not None:
            await waits
        await answers.drain()
        if not frames:
            return "", ""
        (frame,) = decode(frames[0].data, FrameBatch).frames
        assert isinstance(frame, Failed)
        return frame.code, frame.message


@pytest.fixture
def world(memory_bus: MemoryBus) -> Told:
    return Told(memory_bus)


@pytest.mark.parametrize("outside", [False, True], ids=["service", "outside"])
@pytest.mark.parametrize("offered", [False, True], ids=["served", "offered as well"])
async def test_a_request_of_another_tenant_is_refused_as_for_an_unknown_model(
    world: Told, offered: bool, outside: bool
) -> None:
    await world.hear(beat_of([OURS]))
    await world.hear(beat_of([], name="g1", model="free"))
    if offered:
        world.report(limited_offer(), offer("free"))
    assert await world.refusal("m", OURS, outside=outside) == ("", "")
    code, message = await world.refusal("m", THEIRS, outside=outside)
    assert (code, message.replace("'m'", "'x'")) == await world.refusal("x", THEIRS, outside=outside)
    assert code == "model_not_found"
    assert message.endswith(": free")
    assert (await world.refusal("x", OURS, outside=outside))[1].endswith(": free, m")


async def test_a_request_of_another_tenant_wakes_nothing(world: Told) -> None:
    world.report(limited_offer())
    code, _ = await world.refusal("m", THEIRS)
    assert (code, world.models.demand.waiting("m")) == ("model_not_found", 0)
    assert (await world.refusal("m", OURS))[0] == "unavailable"
    assert world.models.demand.waiting("m") == 1


async def test_a_model_stays_hidden_while_its_groups_or_hosts_are_away(world: Told) -> None:
    await world.hear(beat_of([], name="g1", model="free"))
    await world.hear(beat_of([OURS]))
    world.context.fleet.mark_lost("g0", "silent", world.now)
    assert not world.models.admits("m", THEIRS, world.context.fleet)
    world.report(limited_offer("n"))
    assert world.models.expire(world.now + SILENT_S + 1) == ["h"]
    assert not world.models.admits("n", THEIRS, world.context.fleet)
    assert world.models.admits("n", OURS, world.context.fleet)
    world.models.expire(world.now + SILENT_S + AWAY_S + 2)
    assert world.models.admits("n", THEIRS, world.context.fleet), "it is not known any more"


async def test_what_a_new_leader_says_counts(world: Told) -> None:
    await world.hear(beat_of([OURS]))
    await world.hear(beat_of([OURS, THEIRS], instance="i2"))
    assert world.models.admits("m", THEIRS, world.context.fleet)
    await world.hear(beat_of([OURS], name="g1"))
    assert not world.models.admits("m", THEIRS, world.context.fleet), "one of two groups does not let it"
    assert world.models.admits("other", THEIRS, world.context.fleet)


async def test_lists_have_what_the_tenant_may_use_and_no_names_of_tenants(world: Told) -> None:
    await world.hear(beat_of([OURS]))
    await world.hear(beat_of([], name="g1", model="free"))
    world.report(limited_offer(), offer("free"))
    await world.hear(beat_of([OURS], name="g2", model="lost"))
    world.context.fleet.mark_lost("g2", "silent", world.now)

    async def listed(query: ListModels, subject: str) -> ModelList:
        found = await world.handlers.list_models(query, Message(subject, b"", reply="_INBOX.x"))
        assert found is not None
        return found

    def names(found: ModelList) -> tuple[list[str], list[str], list[str]]:
        offered = [state.card.name for state in found.offered]
        return [card.name for card in found.models], found.away, offered

    everything = await listed(ListModels(), subjects.models())
    assert names(everything) == (["free", "m"], ["lost"], ["free", "m"])
    assert names(await listed(ListModels(tenant=THEIRS), subjects.models())) == (["free"], [], ["free"])
    mine = await listed(ListModels(tenant=OURS), subjects.models())
    assert names(mine) == names(everything)
    assert all(not card.tenants for card in [*mine.models, *(one.card for one in mine.offered)])
    outside = subjects.models(subjects.OutsideService(THEIRS, "user"))
    assert names(await listed(ListModels(tenant=OURS), outside)) == (["free"], [], ["free"])
