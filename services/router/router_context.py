"""What a router is made of, in one value that `__main__.py` fills and the handlers use."""

from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from services.router.domain.fleet import Fleet
from services.router.domain.policies.base import Policy
from services.router.domain.policies.costs import Costs
from services.router.metrics import Metrics
from services.router.router_state import Memory
from services.router.settings import RouterSettings
from shared.bus import Bus


@dataclass(frozen=True, slots=True)
class Parts:
    """`clock` gives monotonic seconds."""

    bus: Bus
    fleet: Fleet
    policy: Policy
    costs: Costs
    memory: Memory
    metrics: Metrics
    settings: RouterSettings
    clock: Callable[[], float]
    tracer: Tracer = field(default_factory=NoOpTracer)
