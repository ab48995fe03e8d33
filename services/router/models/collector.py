"""The metrics of models that hosts load and put to sleep, at each scrape. A stack without hosts has none."""

from collections import Counter as Tally
from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.router.context import RouterContext
from services.router.models.lease import ControllerLease
from shared.messages.models import Phase


class ModelCollector(Collector):
    """Models by phase, the requests that wait for each, and whether this router commands the hosts."""

    def __init__(self, context: RouterContext, lease: ControllerLease) -> None:
        self._context = context
        self._lease = lease

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called at each scrape."""
        context, now = self._context, self._context.clock()
        states = context.state.models.states(context.fleet, now)
        phases = GaugeMetricFamily(
            "ryz_router_models", "Models that hosts offer, by phase.", labels=["phase"]
        )
        counted = Tally(state.phase for state in states)
        for phase in get_args(Phase) if states else ():
            phases.add_metric([phase], counted[phase])
        yield phases
        waiting = GaugeMetricFamily(
            "ryz_router_model_waiting_requests",
            "Requests that wait for a model of which no group takes requests, at all routers.",
            labels=["model"],
        )
        failed = GaugeMetricFamily(
            "ryz_router_model_failed",
            "1 while the last load of a model has failed and it may not be tried again yet.",
            labels=["model"],
        )
        for state in states:
            waiting.add_metric([state.card.name], state.waiting)
            failed.add_metric([state.card.name], float(state.phase == "failed"))
        yield waiting
        yield failed
        yield GaugeMetricFamily(
            "ryz_router_models_lease_held",
            "1 while this router commands the agents of hosts.",
            value=float(self._lease.is_held(now)),
        )
