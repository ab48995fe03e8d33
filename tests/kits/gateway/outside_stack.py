"""The services that an outside client meets.

A broker with accounts, a router, a group with the null engine and a gateway.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.gateway.__main__ import start
from services.gateway.settings import GatewaySettings
from shared.client import ClientSettings
from shared.lifecycle import Service
from tests.kits.outside_users import World, world


@dataclass(frozen=True, slots=True)
class OutsideStack:
    """What runs; `world.a` is a service of the tenant `tenant-a`."""

    world: World
    gateway: Service


@asynccontextmanager
async def outside_stack(folder: Path) -> AsyncIterator[OutsideStack]:
    """Runs them on a broker of their own."""
    async with world(folder) as made, AsyncExitStack() as stack:
        settings = GatewaySettings(http_port=0, instance_id="test", drain_timeout_s=0.2)
        service = Service(settings, "gateway")
        service.add_check("broker", lambda: made.gateway.connected)
        await service.answer_operators(made.gateway)
        await start(service, stack, settings, {}, made.gateway, client_settings=ClientSettings())
        service.ready()
        yield OutsideStack(made, service)
        await service.drain()
        await stack.aclose()
        await service.finish()
