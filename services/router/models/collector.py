"""The metrics of models that hosts load and put to sleep, at each scrape. A stack without hosts has none."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.router.domain.groups.fleet import Fleet
from services.router.domain.models.book import ModelBook
from shared.messages.models import Phase


class ModelCollector(Collector):
    """Models by phase, the requests that wait for each, and whether this router commands the hosts."""

    def __init__(
        self, models: ModelBook, fleet: Fleet, is_held: Callable[[float], bool], clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._fleet = fleet
        self._is_held = is_held
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called at each scrape."""
        now = self._clock()
        states = self._models.states(self._fleet, now)
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
            value=float(self._is_held(now)),
        )
