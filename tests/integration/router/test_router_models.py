"""Models that hosts load: real routers, the lease in a real Redis, and an agent that runs leaders."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from shared import subjects
from shared.bus.endpoint import call
from shared.bus.nats import NatsBus
from shared.lifecycle import Service
from shared.messages import (
    Accepted,
    AnyFrame,
    Failed,
    GenerateRequest,
    GroupCommanded,
    ListModels,
    ModelList,
    ModelState,
    StartGroup,
    StopGroup,
)
from tests.kits.kvstate.service import running
from tests.kits.router.agent import HostAgent
from tests.kits.router.hosts import GIB, offer
from tests.kits.router.live import Caller, router, router_process
from tests.kits.waiting import PATIENCE_S, until

LEASE_S, CLAIM_S = 3.0, 1.0  # of `RouterConstants`
BUSY_S = 5.0  # by which a busy machine delays what is measured


@pytest.fixture
async def kvstate(nats_url: str, redis_url: str) -> AsyncIterator[Service]:
    async with running(nats_url, redis_url) as service:
        yield service


@asynccontextmanager
async def agent(
    bus: NatsBus, *names: str, budget_bytes: int = 4 * GIB, load_s: float = 0.2, **more: object
) -> AsyncIterator[HostAgent]:
    offers = [offer(name, **more) for name in names]
    made = HostAgent(bus, f"h-{uuid4().hex[:8]}", offers, budget_bytes, load_s)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def until_offered(service: Service, *names: str) -> None:
    def offered() -> bool:
        models = service.status().detail["models"]
        return set(names) <= {name for phase in models.values() for name in phase}

    await until(offered)


async def offer_again(caller: Caller, request: GenerateRequest) -> AsyncIterator[AnyFrame]:
    """Offers a request again and again, as a client that waits; yields the first frame of each answer.

    What was given to a router that is killed is not answered, and offered again.
    """
    while True:
        caller.frames.pop(request.request_id, None)
        try:
            async with asyncio.timeout(1.0):
                frame = await caller.ask(request)
        except TimeoutError:
            continue
        yield frame
        if not (isinstance(frame, Failed) and frame.data.get("reason") == "waking"):
            return
        await asyncio.sleep(0.05)


async def wait_for(caller: Caller, request: GenerateRequest) -> AnyFrame:
    """The answer to a request whose client waits."""
    return [frame async for frame in offer_again(caller, request)][-1]


async def test_a_request_for_a_model_that_is_asleep_waits_until_a_group_runs(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, model_name: str, caller: Caller
) -> None:
    async with agent(nats_bus, model_name) as host, router(nats_url) as service:
        await until_offered(service, model_name)
        request = caller.request()
        answers = [frame async for frame in offer_again(caller, request)]
        assert isinstance(answers[0], Failed)
        assert (answers[0].code, answers[0].data["reason"]) == ("unavailable", "waking")
        assert model_name in answers[0].message
        assert isinstance(answers[-1], Accepted)
        assert [(one.model, one.running, one.reason) for one in host.started()] == [(model_name, 0, "demand")]
        (state,) = await offered_by(nats_bus)
        assert (state.phase, state.groups_ready, state.waiting) == ("ready", 1, 0)
        assert service.status().detail["models_lease"]["held"]
        timelines = service.timelines.find(request.request_id, 100)
        assert len(answers) > 2
        assert [one.moments[-1].name for one in timelines] == ["refused", "decided"]


async def offered_by(bus: NatsBus) -> list[ModelState]:
    found = await call(bus, subjects.models(), ListModels(), ModelList, timeout_s=PATIENCE_S)
    return found.offered


async def test_a_model_gives_way_to_one_that_is_wanted(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, caller: Caller
) -> None:
    first, second = f"a-{uuid4().hex[:8]}", f"b-{uuid4().hex[:8]}"
    async with (
        agent(nats_bus, first, second, budget_bytes=GIB, load_s=0.1) as host,
        router(nats_url) as service,
    ):
        await until_offered(service, first, second)
        assert isinstance(await wait_for(caller, caller.request(model=first)), Accepted)
        assert isinstance(await wait_for(caller, caller.request(model=second)), Accepted)
        assert isinstance(await wait_for(caller, caller.request(model=first)), Accepted)
        assert [one.model for one in host.started()] == [first, second, first]
        stopped = [one.command for one in host.commands if isinstance(one.command, StopGroup)]
        assert [(one.group, one.reason) for one in stopped] == [
            (f"{host.host}-{first}-0", "evicted"),
            (f"{host.host}-{second}-1", "evicted"),
        ]


async def test_an_unknown_model_is_not_found_and_one_that_is_too_large_never_waits(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, model_name: str, caller: Caller
) -> None:
    async with agent(nats_bus, model_name, budget_bytes=GIB // 2), router(nats_url) as service:
        await until_offered(service, model_name)
        refused = await wait_for(caller, caller.request())
        assert isinstance(refused, Failed)
        assert refused.data["reason"] == "model_too_large"
        unknown = caller.request(model="no-such-model")
        await until_settled(caller, unknown)
        answer = await wait_for(caller, unknown)
        assert isinstance(answer, Failed)
        assert answer.code == "model_not_found"
        assert model_name in answer.message


async def until_settled(caller: Caller, request: GenerateRequest) -> None:
    """Waits until a router that has just started says that there is no such model."""
    while True:
        caller.frames.pop(request.request_id, None)
        frame = await caller.ask(request)
        assert isinstance(frame, Failed)
        if frame.code != "unavailable":
            return
        await asyncio.sleep(0.05)


async def test_another_router_commands_when_the_holder_of_the_lease_is_killed(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, caller: Caller
) -> None:
    first, second = f"a-{uuid4().hex[:8]}", f"b-{uuid4().hex[:8]}"
    async with (
        agent(nats_bus, first, second) as host,
        router_process(nats_url, nats_bus, f"killed-{uuid4().hex[:8]}") as killed,
    ):
        assert isinstance(await wait_for(caller, caller.request(model=first)), Accepted)
        async with router(nats_url, instance_id=f"other-{uuid4().hex[:8]}") as other:
            await until_offered(other, first, second)
            assert not other.status().detail["models_lease"]["held"]
            killed.kill()
            killed_at = time.monotonic()
            assert isinstance(await wait_for(caller, caller.request(model=second)), Accepted)
            (before, after) = host.started()
            assert (before.model, after.model) == (first, second)
            assert after.epoch > before.epoch
            assert host.commands[-1].at - killed_at < LEASE_S + CLAIM_S + BUSY_S
            late = StartGroup(model=first, running=1, epoch=before.epoch, reason="demand")
            answer = await call(
                nats_bus, subjects.start_group(host.host), late, GroupCommanded, timeout_s=PATIENCE_S
            )
            assert "is over" in answer.refused


async def test_a_holder_that_stood_still_commands_nothing_when_it_goes_on(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, caller: Caller
) -> None:
    first, second, third = (f"{letter}-{uuid4().hex[:8]}" for letter in "abc")
    async with (
        agent(nats_bus, first, second, third) as host,
        router_process(nats_url, nats_bus, f"frozen-{uuid4().hex[:8]}") as frozen,
    ):
        assert isinstance(await wait_for(caller, caller.request(model=first)), Accepted)
        async with router(nats_url, instance_id=f"other-{uuid4().hex[:8]}") as other:
            await until_offered(other, first, second, third)
            frozen.send_signal(signal.SIGSTOP)
            assert isinstance(await wait_for(caller, caller.request(model=second)), Accepted)
            frozen.send_signal(signal.SIGCONT)
            assert isinstance(await wait_for(caller, caller.request(model=third)), Accepted)
            assert [command.model for command in host.started()] == [first, second, third]
            before, after, last = (command.epoch for command in host.started())
            assert before < after == last
            assert [one.refused for one in host.commands] == ["", "", ""]


async def test_while_the_lease_cannot_be_claimed_loaded_models_answer_and_others_wait(
    nats_url: str, redis_url: str, nats_bus: NatsBus, caller: Caller
) -> None:
    first, second = f"a-{uuid4().hex[:8]}", f"b-{uuid4().hex[:8]}"
    async with agent(nats_bus, first, second) as host, router(nats_url, lease_ttl_s=1.0) as service:
        await until_offered(service, first, second)
        async with running(nats_url, redis_url):
            assert isinstance(await wait_for(caller, caller.request(model=first)), Accepted)
        await until(lambda: not service.status().detail["models_lease"]["held"])
        waits = asyncio.create_task(wait_for(caller, caller.request(model=second)))
        assert isinstance(await caller.ask(caller.request(model=first)), Accepted)
        await until(lambda: bool(service.status().detail["models_waiting"].get(second)))
        assert not waits.done()
        assert len(host.commands) == 1
        async with running(nats_url, redis_url):
            assert isinstance(await waits, Accepted)


async def test_a_router_that_leaves_gives_the_lease_back(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, model_name: str
) -> None:
    first, second = f"r1-{uuid4().hex[:8]}", f"r2-{uuid4().hex[:8]}"
    async with agent(nats_bus, model_name), router(nats_url, instance_id=second, lease_ttl_s=30.0) as stays:
        async with router(nats_url, instance_id=first, lease_ttl_s=30.0) as leaves:
            await until(lambda: any(one.status().detail["models_lease"]["held"] for one in (stays, leaves)))
        await until(lambda: stays.status().detail["models_lease"]["held"], timeout_s=PATIENCE_S)


async def test_requests_at_one_router_are_demand_for_the_controller_in_another(
    kvstate: Service, nats_url: str, nats_bus: NatsBus, model_name: str, caller: Caller
) -> None:
    async with agent(nats_bus, model_name) as host:
        names = [f"r1-{uuid4().hex[:8]}", f"r2-{uuid4().hex[:8]}"]
        async with (
            router(nats_url, instance_id=names[0]) as one,
            router(nats_url, instance_id=names[1]) as two,
        ):
            await until_offered(one, model_name)
            await until_offered(two, model_name)
            answers = await asyncio.gather(*(wait_for(caller, caller.request()) for _ in range(8)))
            assert all(isinstance(answer, Accepted) for answer in answers)
            assert len(host.started()) == 1
