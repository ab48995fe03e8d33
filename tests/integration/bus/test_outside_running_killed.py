"""The limit of running requests for bus users, while the only router and the only leader are killed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared import subjects
from shared.bus.api import Message
from shared.bus.nats import NatsBus
from shared.codec import decode
from shared.messages import Heartbeat, Limits, TenantRecord
from tests.integration.bus.test_outside_running import LIMIT, POOL, begun, cancel, passes, refusal
from tests.kits.outside_users import HOLD_MS, A, Service
from tests.kits.router.live import router_process
from tests.kits.servers import GuardedNats
from tests.kits.tenants.limit_services import LimitServices
from tests.kits.waiting import until
from tests.kits.worker.process import worker

RECORDS = [TenantRecord(tenant=A.tenant, limits=Limits(running=LIMIT))]
SLOW = {"NULL_STEP_DELAY_MS": "80", "HEARTBEAT_INTERVAL_MS": "50"}


class Broker:
    """A broker with the store of limits, and the connections of a gateway and of a service outside.

    Attributes:
        ready: Instances of leaders that were ready.
    """

    def __init__(
        self, server: GuardedNats, limits: LimitServices, gateway: NatsBus, service: Service
    ) -> None:
        self.server, self.limits, self.gateway, self.service = server, limits, gateway, service
        self.ready: set[str] = set()

    async def hear(self, message: Message) -> None:
        heartbeat = decode(message.data, Heartbeat)
        if heartbeat.state == "ready":
            self.ready.add(heartbeat.instance_id)

    def running(self) -> dict[str, int]:
        """What each router has, as the store counts."""
        return self.limits.store.running(POOL)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    server = GuardedNats(tmp_path, callers=(A,))
    server.start()
    async with AsyncExitStack() as stack:
        stack.callback(server.stop)

        async def bus(user: str) -> NatsBus:
            made = await NatsBus.connect(server.url(user), name=user)
            stack.push_async_callback(made.close)
            return made

        limits = LimitServices(await bus("kvstate"), hold_ms=HOLD_MS)
        await limits.start()
        await limits.put(*RECORDS)
        gateway = await bus("gateway")
        made = Broker(server, limits, gateway, await Service(await bus(A.user), A).start())
        await gateway.subscribe(subjects.HEARTBEAT_ALL, made.hear)
        yield made


async def test_requests_go_on_counting_when_their_only_router_is_killed(broker: Broker) -> None:
    url, service = broker.server.url("router"), broker.service
    async with worker(broker.server.url("worker"), "g0", **SLOW):
        await until(lambda: bool(broker.ready))
        async with router_process(url, broker.gateway, "first") as first:
            await passes(service, "known")
            await begun(service, "a", "b", "c")
            await until(lambda: list(broker.running().values()) == [LIMIT])
            before = set(broker.running())
            first.kill()
            await first.wait()
        async with router_process(url, broker.gateway, "second"):
            await until(lambda: LIMIT in [had for one, had in broker.running().items() if one not in before])
            assert await refusal(service, "d") == "tenant_running"
            await until(lambda: not before & set(broker.running()))
            assert await refusal(service, "e") == "tenant_running"
            await cancel(service, "a")
            await passes(service, "f")


async def test_requests_of_a_killed_leader_count_no_longer(broker: Broker) -> None:
    service = broker.service
    async with router_process(broker.server.url("router"), broker.gateway, "only"):
        async with worker(broker.server.url("worker"), "g0", **SLOW) as first:
            await until(lambda: bool(broker.ready))
            await passes(service, "known")
            await begun(service, "a", "b", "c")
            assert await refusal(service, "d") == "tenant_running"
            first.kill()
            await first.wait()
        async with worker(broker.server.url("worker"), "g0", **SLOW):
            await until(lambda: len(broker.ready) == 2)
            await passes(service, "after")
            await begun(service, "x", "y", "z")
            assert await refusal(service, "e") == "tenant_running"
