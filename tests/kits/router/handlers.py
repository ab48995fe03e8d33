"""The handlers of a router around a context, as `services/router/__main__.py` wires them."""

from typing import NamedTuple

from services.router.context import RouterContext
from services.router.dispatch import Dispatcher
from services.router.losses import LossReports
from services.router.outside.gate import OutsideGate
from services.router.outside.running import RunningRequests
from services.router.subscriptions import RouterSubscriptions
from shared.bus import Bus
from shared.client.calls.limit_leases import LimitLeases


class Handlers(NamedTuple):
    """The parts of a router that a test speaks to."""

    requests: RouterSubscriptions
    losses: LossReports
    running: RunningRequests
    dispatcher: Dispatcher


def router_handlers(
    context: RouterContext, outside: Bus, leases: LimitLeases, dispatcher: Dispatcher | None = None
) -> Handlers:
    """Returns handlers that are not subscribed yet.

    Args:
        context: The parts of the router.
        outside: The connection of users outside.
        leases: Of limits.
        dispatcher: None: one of its own.
    """
    dispatcher = dispatcher or Dispatcher(context)
    running = RunningRequests(context, leases)
    losses = LossReports(context, running.units)
    gate = OutsideGate(context, dispatcher, leases, running)
    requests = RouterSubscriptions(context, dispatcher, losses, outside, gate)
    return Handlers(requests, losses, running, dispatcher)
