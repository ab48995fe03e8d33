"""The limit of running requests for bus users, with a real broker, routers and a leader."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared import codec, subjects
from shared.bus.nats import NatsBus
from shared.messages import Cancel, Done, Failed, GroupDown, Limits, TenantRecord, Tokens
from shared.subjects import HEADER_TIMEOUT
from tests.kits.outside_users import A, Service, World, world
from tests.kits.router.live import router_process
from tests.kits.waiting import until

LIMIT = 3
RECORDS = [TenantRecord(tenant=A.tenant, limits=Limits(running=LIMIT))]
POOL = f"{A.tenant}::running:running"
LONG = {"max_tokens": 1500}  # for half a minute


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, records=RECORDS, step_s=0.02) as made:
        yield made


def running(made: World) -> dict[str, int]:
    """What each router has, as the store counts."""
    return made.limits.store.running(POOL)


async def begun(service: Service, *names: str, **fields: Any) -> None:
    for name in names:
        await service.send(service.ask(name, sampling=LONG, **fields))
    for name in names:
        await until(lambda name=name: any(isinstance(one, Tokens) for one in service.of(name)))  # type: ignore[misc]


async def refusal(service: Service, name: str) -> str:
    """The reason why a short request is refused; empty: it was answered."""
    end = await service.run(service.ask(name, sampling={"max_tokens": 1}))
    return str(end.data.get("reason", end.code)) if isinstance(end, Failed) else ""


async def cancel(service: Service, name: str) -> None:
    await service.bus.publish(subjects.cancel_all(A), codec.encode(Cancel(request_id=name)))
    assert isinstance(await service.end_of(name), Failed)


async def passes(service: Service, name: str) -> None:
    """A request is answered as soon as routers know that there is room."""
    number = 0
    while await refusal(service, f"{name}-{number}"):
        number += 1
        await asyncio.sleep(0.1)


async def test_as_many_run_as_the_limit_says(limited: World) -> None:
    await begun(limited.a, "a", "b", "c")
    assert await refusal(limited.a, "d") == "tenant_running"
    await cancel(limited.a, "b")
    assert await refusal(limited.a, "e") == ""
    assert await refusal(limited.a, "f") == ""
    await begun(limited.a, "g")
    assert await refusal(limited.a, "h") == "tenant_running"
    assert isinstance(await limited.b.run(limited.b.ask("other")), Done)


async def test_a_caller_with_as_many_at_once_as_its_limit_is_never_refused(limited: World) -> None:
    """A unit is free before its caller has the last frame."""
    ends: list[Any] = []

    async def callers(number: int) -> None:
        ends.extend(
            [
                await limited.a.run(limited.a.ask(f"{number}-{turn}", sampling={"max_tokens": 2}))
                for turn in range(15)
            ]
        )

    await asyncio.gather(*(callers(number) for number in range(LIMIT)))
    assert [end for end in ends if not isinstance(end, Done)] == []


async def test_expired_refused_and_repeated_requests_leave_nothing(limited: World) -> None:
    service = limited.a
    for name in ("late", "later", "latest"):
        request = service.ask(name, sampling=LONG)
        await service.bus.publish(
            subjects.generate(request.model, A),
            codec.encode(request),
            reply=f"{service.inbox}.x",
            headers={HEADER_TIMEOUT: "300"},
        )
        assert isinstance(await service.end_of(name), Failed)
    for number in range(LIMIT + 1):
        end = await service.run(service.ask(f"nowhere-{number}"), model="no-such-model")
        assert isinstance(end, Failed)
        assert end.code in {
            "model_not_found",
            "unavailable",
        }  # later: it may be that not all groups are known
    for _ in range(LIMIT + 1):  # copies of one that has ended are answered from its frames
        assert await refusal(service, "same") == ""
    await begun(service, "a", "b", "c")
    assert await refusal(service, "d") == "tenant_running"


async def test_a_lost_leader_leaves_nothing(limited: World) -> None:
    await begun(limited.a, "a", "b", "c")
    down = GroupDown(group="g0", instance_id=limited.kit.instance_id, reason="silent", router_id="other")
    other = await NatsBus.connect(limited.broker.url("router"), name="other router")
    await other.publish(subjects.GROUP_DOWN, codec.encode(down))
    for name in "abc":
        assert isinstance(await limited.a.end_of(name), Failed)
    await other.close()
    await passes(limited.a, "d")


async def test_requests_of_a_killed_router_go_on_counting(limited: World) -> None:
    """Of two routers one is killed; the other one counts its requests before its lease is over."""
    names = [f"r{number}" for number in range(LIMIT)]
    async with router_process(limited.broker.url("router"), limited.gateway, "doomed") as doomed:
        for name in names:
            await begun(limited.a, name)
        await until(lambda: sum(running(limited).values()) == LIMIT)
        doomed.kill()
        await doomed.wait()
        await until(lambda: list(running(limited).values()) == [LIMIT])
        assert await refusal(limited.a, "one-more") == "tenant_running"
        await cancel(limited.a, names[0])
        await passes(limited.a, "next")
