"""The metrics of a router, and of its view of the fleet at each scrape."""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.router.domain.groups.balance import imbalance
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.group import Standing
from services.router.domain.groups.loss import REASONS
from services.router.domain.models.states import is_resting
from services.router.state import RouterState
from shared.messages.fleet import DownReason
from shared.telemetry.histograms import HistogramFamily

_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
_MOVE_SECONDS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)


class RouterMetrics:
    """All metrics of one router. Children are kept, because looking them up costs more than counting."""

    def __init__(self, registry: CollectorRegistry, policy: str) -> None:
        counter = partial(Counter, registry=registry)
        self._policy = policy
        self._decisions = counter(
            "ryz_router_decisions_total",
            "Requests given to a group, by policy, reason and group.",
            ["policy", "reason", "group"],
        )
        self._refusals = counter(
            "ryz_router_refusals_total",
            "Requests answered with an error, by code and reason.",
            ["code", "reason"],
        )
        self._unanswered = counter(
            "ryz_router_unanswered_refusals_total",
            "Requests of users outside that were refused without an answer, by reason.",
            ["reason"],
        )
        self._events = counter(
            "ryz_router_events_total",
            "What else happened: heartbeats ignored or invalid, groups lost, work without a receiver, ...",
            ["event"],
        )
        self._losses = counter(
            "ryz_router_groups_lost_total",
            "Times that a group was given up, by reason and group; `ended`, `frozen`, `hung`: it told so.",
            ["reason", "group"],
        )
        self._actions = counter(
            "ryz_router_model_actions_total",
            "Commands to agents of hosts, by action (`load`, `stop`, `resize`), reason and outcome (`done`, "
            "`refused`, `unanswered`).",
            ["action", "reason", "outcome"],
        )
        self._seconds = HistogramFamily(
            registry, "ryz_router_decision_seconds", "Time to choose a group.", _SECONDS
        ).series()
        self._moves = HistogramFamily(
            registry,
            "ryz_router_move_seconds",
            "What it was expected to take to have a session's KV on the group that it moved to.",
            _MOVE_SECONDS,
        ).series()
        # there from the start, for alerts: to Prometheus a counter that appears with 1 has not grown
        for event in ("bad_heartbeat", "bad_query", "deaf", "group_tripped", "heartbeat_rival"):
            self._events.labels(event)
        self._children: dict[tuple[str, str], Callable[[], None]] = {}

    def decided(self, reason: str, group: str, seconds: float) -> None:
        """A request goes to a group."""
        count = self._children.get((reason, group))
        if count is None:
            count = self._children[reason, group] = self._decisions.labels(self._policy, reason, group).inc
        count()
        self._seconds.observe(seconds)

    def moved(self, seconds: float) -> None:
        """A session goes to another group than before."""
        self._moves.observe(seconds)

    def refused(self, code: str, reason: str) -> None:
        """A request is answered with an error."""
        self._refusals.labels(code, reason).inc()

    def unanswered(self, reason: str) -> None:
        """A refusal of a user outside is not answered, because many were."""
        self._unanswered.labels(reason).inc()

    def knows(self, group: str) -> None:
        """A group was heard: its losses are counted from 0 on."""
        for reason in (*get_args(DownReason), *REASONS):
            if reason != "stopped":  # a clean end is no loss
                self._losses.labels(reason, group)

    def lost(self, reason: str, group: str) -> None:
        """A group was given up."""
        self._losses.labels(reason, group).inc()

    def commanded(self, action: str, reason: str, outcome: str) -> None:
        """An agent of a host was commanded."""
        self._actions.labels(action, reason, outcome).inc()

    def event(self, name: str) -> None:
        """Something else happened."""
        self._events.labels(name).inc()


class FleetCollector(Collector):
    """Groups by state, their estimated load, the imbalance over all of them, and what is remembered."""

    def __init__(self, fleet: Fleet, memory: RouterState) -> None:
        self._fleet = fleet
        self._state = memory

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called at each scrape."""
        now = time.monotonic()
        groups = self._fleet.groups()
        states = GaugeMetricFamily("ryz_router_groups", "Groups by state.", labels=["state"])
        counted = Tally(group.standing(now) for group in groups)
        for state in get_args(Standing) if groups else ():
            states.add_metric([state], counted[state])
        yield states
        serving = GaugeMetricFamily(
            "ryz_router_ready_groups",
            "Groups of a model that take requests; 0 while it is known and none of them does, unless a host "
            "has put it to sleep.",
            labels=["model"],
        )
        offered = self._state.models.offered
        models = Tally(
            {name: 0 for group in groups if not is_resting(name := group.heartbeat.model.name, offered)}
        )
        models.update(group.heartbeat.model.name for group in groups if group.standing(now) == "ready")
        for model, count in sorted(models.items()):
            serving.add_metric([model], count)
        yield serving
        yield GaugeMetricFamily(
            "ryz_router_group_rivals",
            "Groups under whose name two leaders live; requests go to one of them.",
            value=sum(1 for group in groups if self._fleet.rivals.of(group.name, now)),
        )
        held = GaugeMetricFamily(
            "ryz_router_group_requests", "Requests of a group, estimated.", labels=["group", "kind"]
        )
        for group in groups:
            view = group.view(now)
            held.add_metric([group.name, "running"], view.running)
            held.add_metric([group.name, "waiting"], view.waiting)
        yield held
        weights = {group.name: group.heartbeat.weight for group in groups if group.standing(now) == "ready"}
        yield GaugeMetricFamily(
            "ryz_router_imbalance",
            "How much more than its share of requests a ready group got at most lately; 0.05 is 5 %.",
            value=imbalance(self._state.balance.counts(now), weights),
        )
        work = GaugeMetricFamily(
            "ryz_router_group_tokens",
            "Tokens that a group computed lately; older ones fade.",
            labels=["group"],
        )
        for name, tokens in sorted(self._fleet.work.computed.counts(now).items()):
            work.add_metric([name], tokens)
        yield work
        yield self._work_imbalance(now)
        yield GaugeMetricFamily(
            "ryz_router_sessions",
            "Entries for sessions whose place is known.",
            value=len(self._state.sessions),
        )
        yield GaugeMetricFamily("ryz_router_pins", "Pinned sessions.", value=len(self._state.pins))

    def _work_imbalance(self, now: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "ryz_router_work_imbalance",
            "How much more than its share of tokens a ready group computed at most lately; 0.05 is 5 %.",
            labels=["model"],
        )
        weights: dict[str, dict[str, float]] = {}
        for group in self._fleet.groups():
            if group.standing(now) == "ready":
                weights.setdefault(group.heartbeat.model.name, {})[group.name] = group.heartbeat.weight
        for model, shares in weights.items():
            family.add_metric([model], imbalance(self._fleet.work.computed.counts(now), shares))
        return family
