"""Gateway, router and leader on a real broker, each behind a proxy of its own that can lose single messages.

All three run in this process; the engine is the null engine, which notes what each step computes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.gateway.__main__ import start
from services.gateway.settings import GatewaySettings
from services.worker.null.engine import TEXT, NullEngine
from services.worker.rank_protocol.plan import StepPlan, StepResult
from shared import subjects
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.lifecycle import Service
from tests.kits.client import client_settings
from tests.kits.gateway.identity.account_service import AccountService
from tests.kits.proxies.nats import NatsProxy
from tests.kits.router.live import router
from tests.kits.servers import NatsServer
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit
from tests.kits.worker.options import scheduler_limits

# one sequence at a time may compute a long prompt in many steps, and a third one waits
LIMITS = scheduler_limits(token_budget=32, max_running=2, max_waiting=8)
CLIENT = client_settings(probe_interval_s=0.2, resend_timeout_s=0.2, accept_timeout_s=0.1, max_publishes=3)


class NotingEngine(NullEngine):
    """A null engine that notes the sequences of each step.

    Attributes:
        steps: Sequences that each step computed.
    """

    def __init__(self, step_s: float) -> None:
        super().__init__(
            tokens=list(TEXT.encode()),
            num_blocks=512,
            vocab_size=257,
            context_length=2048,
            step_delay_s=step_s,
        )
        self.steps: list[set[int]] = []

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Notes the plan's sequences."""
        self.steps.append({piece.seq_id for piece in plan.chunks})
        return super().submit(plan)


@dataclass
class LossyPath:
    """What runs, and the proxies by the names of those who publish through them.

    Attributes:
        cancels_at: Number of steps that had been submitted when each cancel reached the leader's process.
    """

    url: str
    gateway: Service
    kit: Kit
    engine: NotingEngine
    client: InferenceClient
    proxies: dict[str, NatsProxy]
    cancels_at: list[int] = field(default_factory=list)

    @property
    def running(self) -> int:
        """Requests that the gateway counts as running."""
        count = self.gateway.status().detail["running"]
        assert isinstance(count, int)
        return count

    def load(self) -> tuple[int, int]:
        """Running and waiting sequences of the leader."""
        load = self.kit.leader.load()
        return load.running, load.waiting

    async def all_free(self) -> None:
        """Waits until no part holds anything of any request."""
        await self.kit.all_free()
        await until(lambda: not self.running and not self.client.num_open)
        for name in ("ryz_gateway_open_streams", "ryz_gateway_parked_streams"):
            assert not self.gateway.registry.get_sample_value(name)


@asynccontextmanager
async def lossy_path(folder: Path, *, step_s: float = 0.01) -> AsyncIterator[LossyPath]:
    """Runs all of it. At the end nothing may hold a request, and no task may be left of the gateway."""
    async with AsyncExitStack() as stack:
        server = NatsServer(folder)
        server.start()
        stack.callback(server.stop)
        names = ("gateway", "router", "leader")
        proxies = {name: await stack.enter_async_context(NatsProxy(server.port)) for name in names}

        async def connect(name: str) -> NatsBus:
            bus = await NatsBus.connect(f"nats://127.0.0.1:{proxies[name].port}", name=name)
            stack.push_async_callback(bus.close)
            return bus

        leaders, ours = await connect("leader"), await connect("gateway")
        engine = NotingEngine(step_s)
        kit = Kit(leaders, engine, steps=LIMITS)
        await AccountService(leaders).start()
        cancels_at: list[int] = []
        for subject in (subjects.CANCEL_ALL, subjects.cancel("g0")):
            await leaders.subscribe(subject, lambda message: cancels_at.append(len(engine.steps)))
        await stack.enter_async_context(kit)
        await stack.enter_async_context(router(f"nats://127.0.0.1:{proxies['router'].port}"))
        settings = GatewaySettings.model_validate(
            {"http_port": 0, "instance_id": "test", "drain_timeout_s": 0.2}
        )
        service = Service(settings, "gateway")
        opened = await start(service, stack, settings, {}, ours, client_settings=CLIENT)
        service.ready()
        client = InferenceClient(await connect("gateway"), CLIENT)
        await client.start()
        stack.push_async_callback(client.close)
        path = LossyPath(
            f"http://127.0.0.1:{opened.http_port}", service, kit, engine, client, proxies, cancels_at
        )
        yield path
        for proxy in proxies.values():
            proxy.resume()
        await path.all_free()
        await service.drain()
    await service.finish()
