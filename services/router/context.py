"""The parts of a router that its handlers share, in one value that `__main__.py` fills."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.router.domain.groups.fleet import Fleet
from services.router.domain.policies.base import Policy
from services.router.domain.policies.costs import Costs
from services.router.metrics import RouterMetrics
from services.router.settings import RouterSettings
from services.router.state import RouterState
from shared.bus import Bus
from shared.telemetry.spans.facts import SpanSink
from shared.telemetry.timelines import Timelines


@dataclass(frozen=True, slots=True)
class RouterContext:
    """The shared parts of one router.

    Attributes:
        bus: The connection of services; requests of outside callers come by another one.
        costs: Rates the moving of sessions, as the policy does.
        state: What is remembered of requests and sessions.
        settings: As read at the start.
        clock: Returns monotonic seconds.
        pressure: Returns how busy this machine is at that time, as in `Vitals`.
        spans: Takes the spans of decisions; None: none are recorded.
        timelines: Keeps when requests passed this router.
        models_changed: Set when there may be something to load or to end: a model becomes wanted, here or at
            another router, or a host reports news.
    """

    bus: Bus
    fleet: Fleet
    policy: Policy
    costs: Costs
    state: RouterState
    metrics: RouterMetrics
    settings: RouterSettings
    clock: Callable[[], float]
    pressure: Callable[[float], float]
    spans: SpanSink | None = None
    timelines: Timelines = field(default_factory=lambda: Timelines(0))
    models_changed: asyncio.Event = field(default_factory=asyncio.Event)
