"""Runs a router: `python -m services.router`. Wires settings, fleet, policy, handlers and life together.

Any number may run: they share the requests, and agree on where a session belongs without talking about it.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import cast

from services.router.dispatch import Dispatcher
from services.router.domain.fleet import Fleet
from services.router.domain.policies import make_policy
from services.router.losses import Losses
from services.router.metrics import FleetCollector, Metrics
from services.router.pin_sync import PinKeeper
from services.router.router_context import Parts
from services.router.router_state import Memory
from services.router.session_events import SessionNews
from services.router.settings import RouterSettings
from services.router.status import describe
from services.router.subscriptions import Handlers
from services.router.watch import Watch
from shared.lifecycle import Service, run
from shared.settings import load


async def setup(service: Service, stack: AsyncExitStack) -> None:
    """Connects everything; see `shared.lifecycle.run`."""
    settings = cast(RouterSettings, service.settings)
    bus = await service.connect_bus(stack)
    # the broker cuts a connection that is flooded: this one carries nothing of services, and ready without it
    outside = await service.connect_bus(stack, "outside", needed=False)
    fleet, memory = Fleet(settings.fleet_limits()), Memory(settings)
    metrics = Metrics(service.registry, settings.router_policy)
    service.registry.register(FleetCollector(fleet, memory))
    costs = settings.costs()
    policy = make_policy(settings.router_policy, settings.hybrid_limits(), costs)
    parts = Parts(bus, fleet, policy, costs, memory, metrics, settings, time.monotonic, service.tracer)
    losses = Losses(parts)
    handlers, news = Handlers(parts, Dispatcher(parts), losses, outside), SessionNews(parts)
    watch = Watch(parts, losses)
    pins = PinKeeper(bus, memory.pins, metrics, settings.router_pins_refresh_s)
    service.set_detail(lambda: describe(parts))
    await service.answer_status(bus)
    await service.serve_admin(stack)
    await handlers.listen()
    await news.listen()
    await losses.listen()
    await watch.listen()
    service.spawn(pins.keep(), "keep pins")
    service.spawn(watch.run(), "watch fleet")
    # who has heard no heartbeat yet would answer that there is no such model
    await asyncio.sleep(settings.router_warmup_s)
    service.on_drain(news.leave)
    service.on_drain(handlers.leave)
    await handlers.take()
    await news.take()
    service.ready()


def main() -> None:
    """The command."""
    run(load(RouterSettings), "router", setup)


if __name__ == "__main__":
    main()
