"""Gateways on a real broker with JetStream, and a whole leader with the null engine behind them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from services.gateway.__main__ import start
from services.gateway.admission.auth import parse_keys
from services.gateway.settings import GatewaySettings
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import ClientSettings
from shared.codec import decode, encode
from shared.errors import RyzError
from shared.lifecycle import Service
from shared.messages import GenerateRequest, Route, Work
from shared.telemetry.spans.facts import SpanSink
from tests.kits.constants import settings_with_constants
from tests.kits.gateway.identity.account_service import AccountService
from tests.kits.worker.leader import Kit, null_engine

FAST = {"batch_lease_s": 1.0, "drain_timeout_s": 0.2, "http_port": 0}


@dataclass
class BatchGateway:
    """A running gateway.

    Attributes:
        url: Where it is.
        service: Its service.
        bus: Its connection.
        accounts: Tenants and keys.
        clients: Those that were made.
    """

    url: str
    service: Service
    bus: NatsBus
    accounts: AccountService
    clients: list[AsyncOpenAI] = field(default_factory=list)

    def client(self, key: str = "none") -> AsyncOpenAI:
        """OpenAI's client of this gateway."""
        made = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
        self.clients.append(made)
        return made

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric."""
        return self.service.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def batch_gateway(
    url: str, files: Path, *, spans: SpanSink | None = None, **settings: Any
) -> AsyncIterator[BatchGateway]:
    """Runs a gateway on this broker; it drains at the end.

    Args:
        url: The broker.
        files: The directory of files.
        spans: Takes the spans of recorded requests.
        settings: Of the gateway.
    """
    chosen = settings_with_constants(
        GatewaySettings, FAST | {"instance_id": "gw", "files_dir": str(files)} | settings
    )
    bus = await NatsBus.connect(url, name=chosen.instance_id)
    accounts = await AccountService(bus).start()
    service = Service(chosen, "gateway")
    service.spans = spans
    service.add_check("broker", lambda: bus.connected)
    try:
        async with AsyncExitStack() as stack:
            keys = parse_keys(chosen.api_keys.get_secret_value())
            resources = await start(service, stack, chosen, keys, bus, client_settings=ClientSettings())
            service.ready()
            running = BatchGateway(f"http://127.0.0.1:{resources.http_port}", service, bus, accounts)
            yield running
            for client in running.clients:
                await client.close()
            await service.drain()
        await service.finish()
    finally:
        await bus.close()


@asynccontextmanager
async def null_leader(
    url: str, *, delay_s: float = 0.0, spans: SpanSink | None = None
) -> AsyncIterator[list[GenerateRequest]]:
    """Runs a leader on this broker, and what a router would do; yields the requests that came."""
    bus = await NatsBus.connect(url, name="leader")
    seen: list[GenerateRequest] = []

    async def forward(message: Message) -> None:
        request = decode(message.data, GenerateRequest)
        seen.append(request)
        work = Work(request=message.data, route=Route(group="g0", reason="test"), reply_to=request.reply_to)
        with suppress(RyzError):  # the broker is away: a router's caller asks again, too
            await bus.publish(subjects.work("g0"), encode(work), headers=dict(message.headers))

    try:
        await bus.subscribe(subjects.GENERATE_ALL, forward, queue=subjects.ROUTER_QUEUE)
        async with Kit(bus, null_engine(delay_s=delay_s), spans=spans):
            yield seen
    finally:
        await bus.close()


def chat_lines(count: int, *, max_tokens: int = 4, first: int = 0) -> bytes:
    """The input file of a batch with so many chat completions, `line-0` and so on."""
    line = (
        '{"custom_id": "line-%d", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "demo", '
        '"max_tokens": %d, "messages": [{"role": "user", "content": "number %d"}]}}\n'
    )
    return "".join(line % (index, max_tokens, index) for index in range(first, first + count)).encode()
