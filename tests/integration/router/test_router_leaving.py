"""A router that stops and a group that drains under traffic: no accepted request is lost."""

import asyncio
import signal
from contextlib import AsyncExitStack
from uuid import uuid4

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, decode_reply, encode
from shared.messages import (
    Accepted,
    Failed,
    FrameBatch,
    GenerateRequest,
    Load,
    ServiceStatus,
    StatusQuery,
    Work,
)
from tests.kits.router.live import Caller, Leader, router, router_process, until_known
from tests.kits.waiting import PATIENCE_S, until

REQUESTS = 500


async def test_a_router_that_is_stopped_under_load_hands_on_all_that_it_was_given(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    """Each request is published once, so a request that the leaving router drops is never answered."""
    names = [f"router-{uuid4().hex[:6]}" for _ in range(2)]
    async with AsyncExitStack() as stack:
        starts = [router_process(nats_url, nats_bus, name) for name in names]
        routers = [await stack.enter_async_context(start) for start in starts]
        requests = [caller.request(f"s-{number}") for number in range(REQUESTS)]
        for number, request in enumerate(requests):
            await caller.publish(request)
            if number == REQUESTS // 2:
                routers[0].send_signal(signal.SIGTERM)
            if number % 50 == 0:
                await asyncio.sleep(0.002)
        await until(lambda: all(request.request_id in caller.frames for request in requests))
        assert await asyncio.wait_for(routers[0].wait(), PATIENCE_S) == 0
        frames = [caller.frames[request.request_id][0] for request in requests]
        assert all(isinstance(frame, Accepted) for frame in frames)
        works = [work for leader in leaders for work, _ in leader.taken]
        assert len(works) == REQUESTS  # no duplicates
        shares = [sum(work.route.router_id == name for work in works) for name in names]
        print(f"requests by router: {shares}")
        assert min(shares) > 0


async def test_what_a_draining_group_gives_back_goes_to_another_group(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    """The leader fails the request before its heartbeat reports draining; the router remembers the group."""
    giving = leaders[0]
    give_back = [False]

    async def take(message: Message) -> None:
        work = decode(message.data, Work)
        request = decode(work.request, GenerateRequest)
        giving.taken.append((work, message))
        frame = (
            Failed(
                request_id=request.request_id,
                attempt=request.attempt,
                code="unavailable",
                message="drains",
                resumable=True,
            )
            if give_back[0]
            else Accepted(request_id=request.request_id, attempt=request.attempt, group=giving.group)
        )
        await nats_bus.publish(work.reply_to, encode(FrameBatch(frames=[frame])))

    await giving.deafen()
    work = await nats_bus.subscribe(subjects.work(giving.group), take)
    async with router(nats_url) as service:
        sessions = [f"s-{number}" for number in range(24)]
        mine = [session for session in sessions if await caller.group_of(session) == giving.group]
        assert mine
        give_back[0] = True
        for session in mine:
            request = caller.request(session)
            frame = await caller.ask(request)
            assert isinstance(frame, Failed)
            assert frame.resumable
            again = caller.request(session, request_id=request.request_id, attempt=1)
            caller.frames.clear()
            frame = await caller.ask(again)
            assert isinstance(frame, Accepted)
            assert frame.group == leaders[1].group
            assert leaders[1].taken[-1][0].route.reason == "resumed"
        giving.state = "draining"
        await until_known(service, giving)
        taken = len(giving.taken)
        for session in sessions:
            assert await caller.group_of(session) == leaders[1].group
        assert len(giving.taken) == taken
    await work.unsubscribe()


async def test_resumed_and_urgent_requests_are_not_refused_by_an_estimate(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    for leader in leaders:
        leader.load = Load(running=4, waiting=2, max_running=4, max_waiting=2)
    async with router(nats_url) as service:
        await until_known(service, *leaders)
        waits = {(await caller.failure(caller.request())).data["retry_after_s"] for _ in range(10)}
        assert len(waits) > 1  # retry times differ, so that callers do not return together
        assert isinstance(await caller.ask(caller.request(priority=1)), Accepted)
        assert isinstance(await caller.ask(caller.request(attempt=1)), Accepted)
        reasons = {work.route.reason for leader in leaders for work, _ in leader.taken}
        assert reasons == {"urgent_full", "resumed"}


async def test_routers_count_each_other(nats_url: str, nats_bus: NatsBus) -> None:
    """One that ends says so, and one that is killed is forgotten."""
    names = [f"router-{uuid4().hex[:6]}" for _ in range(3)]
    inbox, counted = nats_bus.new_inbox(), dict[str, int]()

    async def hear(message: Message) -> None:
        if not message.no_responders:
            status = decode_reply(message.data, ServiceStatus)
            counted[status.instance_id] = status.detail["routers"]

    async def await_counts(count: int, *names: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while [counted.get(name) for name in names] != [count] * len(names):
                await nats_bus.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
                await asyncio.sleep(0.05)

    await nats_bus.subscribe(inbox, hear)
    async with AsyncExitStack() as stack:
        starts = [router_process(nats_url, nats_bus, name) for name in names]
        routers = [await stack.enter_async_context(start) for start in starts]
        await await_counts(3, *names)
        routers[0].terminate()
        assert await asyncio.wait_for(routers[0].wait(), PATIENCE_S) == 0
        await await_counts(2, *names[1:])
        routers[1].kill()
        await await_counts(1, names[2])
