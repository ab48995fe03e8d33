"""The limit of running requests for a bus user of a stack whose routers and groups are killed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shared import codec, subjects
from shared.bus.nats import NatsBus
from shared.messages import Cancel, Failed, Tokens
from shared.subjects import Caller
from tests.kits.chaos.services import kill, metrics_of
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.outside_users import Service
from tests.kits.waiting import until

LIMIT = 3
SERVICE = Caller("acme", "svc")
LONG = {"max_tokens": 1500}  # for half a minute
ENV = {"RYZ_NULL_STEP_DELAY_MS": "20"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("running")
    with Stack(folder, "--engine", "null", "--groups", "1", "--routers", "1", env=ENV) as started:
        yield started.await_ready()
        assert started.end() == 0


@pytest.fixture(scope="module")
def url(stack: Stack) -> str:
    assert ryz("tenants", "create", SERVICE.tenant, "--running", str(LIMIT), cwd=stack.folder).returncode == 0
    made = ryz("keys", "create", "--bus-user", SERVICE.user, "--tenant", SERVICE.tenant, cwd=stack.folder)
    assert made.returncode == 0, made.stderr
    return dict(line.split("=", 1) for line in made.stdout.split())["RYZ_NATS_URL"]


@pytest.fixture
async def service(url: str) -> AsyncIterator[Service]:
    bus = await NatsBus.connect(url, name="test", connect_wait_s=10)
    yield await Service(bus, SERVICE).start()
    await bus.close()


async def begun(service: Service, *names: str) -> None:
    for name in names:
        await service.send(service.ask(name, sampling=LONG))
        await until(lambda name=name: any(isinstance(one, Tokens) for one in service.of(name)))  # type: ignore[misc]


async def reason(service: Service, name: str, **sampling: Any) -> str:
    """Why a request is refused; empty: it was answered."""
    end = await service.run(service.ask(name, sampling={"max_tokens": 1, **sampling}))
    return str(end.data.get("reason", end.code)) if isinstance(end, Failed) else ""


async def passes(service: Service, name: str) -> None:
    number = 0
    while await reason(service, f"{name}-{number}"):
        number += 1
        await asyncio.sleep(0.2)


async def end_all(service: Service, *names: str) -> None:
    for name in names:
        await service.bus.publish(subjects.cancel_all(SERVICE), codec.encode(Cancel(request_id=name)))
        await service.end_of(name)


async def test_requests_go_on_counting_when_their_only_router_is_killed(
    stack: Stack, service: Service
) -> None:
    await begun(service, "a", "b", "c")
    assert await reason(service, "d") == "tenant_running"
    before = kill(stack, "router")
    await until(lambda: stack.pid_of("router") not in {0, before})

    def taken_over() -> float:
        router = metrics_of(stack).get("router")
        return router.value("ryz_router_events_total", event="running_taken_over") if router else 0.0

    await until(lambda: taken_over() == LIMIT)
    assert await reason(service, "e") == "tenant_running"
    await end_all(service, "a", "b", "c")
    await passes(service, "f")
    await begun(service, "x", "y", "z")
    assert await reason(service, "g") == "tenant_running"
    await end_all(service, "x", "y", "z")


async def test_requests_of_a_killed_leader_count_no_longer(stack: Stack, service: Service) -> None:
    await passes(service, "before")
    await begun(service, "k", "l", "m")
    before = kill(stack, "worker-g0")
    await until(lambda: stack.pid_of("worker-g0") not in {0, before})
    await passes(service, "after")
    await begun(service, "n", "o", "p")
    assert await reason(service, "q") == "tenant_running"
    await end_all(service, "n", "o", "p")
