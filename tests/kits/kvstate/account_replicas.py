"""The calls about tenants and keys on a real broker, without the rest of the KV state service."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from services.kvstate.accounts.assembly import account_calls
from services.kvstate.call_server import CallServer
from services.kvstate.metrics import KVStateMetrics
from shared.bus.nats import NatsBus


class MemoryMark:
    """The plain form of the mark that keys are required, which outlives a replica and not the test."""

    def __init__(self) -> None:
        self.required = False

    async def note(self, *, required: bool) -> None:
        self.required = required

    async def stands(self) -> bool:
        return self.required


@asynccontextmanager
async def account_replica(nats_url: str) -> AsyncIterator[NatsBus]:
    """Runs a replica that answers those calls; gives its connection."""
    async with AsyncExitStack() as stack:
        bus = await NatsBus.connect(nats_url, name="kvstate")
        stack.push_async_callback(bus.close)
        metrics = KVStateMetrics(CollectorRegistry())
        server = CallServer(bus, metrics, max_concurrent=16, max_pending=1024)
        await server.start(account_calls(bus, stack, MemoryMark()).calls())
        await bus.flush()
        stack.push_async_callback(server.stop)
        yield bus
