"""Runs a router: `python -m services.router`. Wires settings, fleet, policy, handlers and life together.

Any number may run: they share the requests, and agree on where a session belongs without talking about it.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import cast

from services.router.adapters.calls import AdapterLoadCalls
from services.router.context import RouterContext
from services.router.dispatch import Dispatcher
from services.router.domain.groups.fleet import Fleet
from services.router.domain.policies import HybridLimits, make_policy
from services.router.losses import LossReports
from services.router.metrics import FleetCollector, RouterMetrics
from services.router.models.collector import ModelCollector
from services.router.models.controller import ModelController
from services.router.models.lease import ControllerLease
from services.router.models.reports import HostReports
from services.router.outside.gate import OutsideGate
from services.router.outside.running import kept_running
from services.router.presence import RouterPresence
from services.router.session_events import PinSync, SessionEvents
from services.router.settings import RouterSettings
from services.router.state import RouterState
from services.router.status import describe
from services.router.subscriptions import RouterSubscriptions
from services.router.watch import FleetWatch
from shared.client.calls.accounts_sync import AccountsSync
from shared.client.calls.limit_leases import kept_leases
from shared.client.calls.register_sync import RegisterSync
from shared.host.cpu_pressure import CpuPressure
from shared.lifecycle import Service, run_service
from shared.settings import load


async def setup(service: Service, stack: AsyncExitStack) -> None:
    """Connects everything; see `shared.lifecycle.run_service`."""
    settings = cast(RouterSettings, service.settings)
    constants = settings.constants
    bus = await service.connect_bus(stack)
    # the broker cuts a connection that is flooded: this one carries nothing of services, and ready without it
    outside = await service.connect_bus(stack, "outside", needed=False)
    fleet, state = Fleet(settings.fleet_limits()), RouterState(settings)
    metrics = RouterMetrics(service.registry, settings.router_policy)
    service.registry.register(FleetCollector(fleet, state))
    policy = make_policy(settings.router_policy, settings.part(HybridLimits), constants.costs)
    context = RouterContext(
        bus,
        fleet,
        policy,
        constants.costs,
        state,
        metrics,
        settings,
        time.monotonic,
        CpuPressure().read,
        service.spans,
        service.timelines,
    )
    leases = await kept_leases(bus, state.accounts, settings.instance_id, stack)
    running = await kept_running(context, leases, stack)
    dispatcher, adapters = Dispatcher(context), AdapterLoadCalls(context)
    gate, losses = OutsideGate(context, dispatcher, leases, running), LossReports(context, running.units)
    requests = RouterSubscriptions(context, dispatcher, losses, outside, gate)
    watch, presence, sessions = FleetWatch(context, losses), RouterPresence(context), SessionEvents(context)
    reports, lease = HostReports(context), ControllerLease(context)
    controller = ModelController(context, lease, presence)
    service.registry.register(ModelCollector(state.models, fleet, lease.is_held, context.clock))
    pins = PinSync(bus, state.pins, metrics, constants.pins_refresh_s)
    register = RegisterSync(bus, state.adapters, constants.adapters_refresh_s, metrics.event)
    accounts = AccountsSync(bus, state.accounts, count=metrics.event)
    service.set_detail(lambda: describe(context, lease))
    await service.answer_operators(bus, outside)
    await service.serve_admin(stack)
    await requests.listen()
    await sessions.listen()
    await losses.listen()
    await watch.listen()
    await presence.listen()
    await reports.listen()
    await register.listen()
    await accounts.listen()
    service.spawn(register.keep(), "keep adapters")
    service.spawn(accounts.keep(), "keep accounts")
    service.spawn(pins.keep_pins(), "keep pins")
    service.spawn(watch.watch_fleet(), "watch fleet")
    # a router that has heard no heartbeat yet would answer that there is no such model
    await asyncio.sleep(constants.warmup_s)
    service.on_drain(sessions.stop_answering)
    service.on_drain(requests.stop_taking)
    service.on_drain(adapters.stop_taking)
    service.on_drain(presence.leave)
    service.on_drain(controller.leave)
    await requests.take_requests()
    service.spawn(presence.announce(), "announce")
    service.spawn(lease.keep(), "keep the models' lease")
    service.spawn(controller.control(), "control models")
    await sessions.answer_queries()
    await adapters.take_calls()
    service.ready()


def main() -> None:
    """The command."""
    run_service(load(RouterSettings), "router", setup)


if __name__ == "__main__":
    main()
