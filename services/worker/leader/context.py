"""The identity and instruments that all parts of one leader share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.worker.metrics import WorkerMetrics
from shared.bus.api import Bus
from shared.telemetry.spans.facts import SpanSink
from shared.telemetry.timelines import Timelines


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """Identity and instruments of one leader.

    Attributes:
        instance_id: Names this process among all that lead the group, now or later.
        model: Name under which the group serves its model.
        bus: Connection for requests, frames and calls.
        clock: Returns monotonic seconds.
        timelines: Keeps when requests passed the parts of this leader.
        spans: Takes the spans of recorded requests; None: none are recorded.
        tenants: Only these may use the model; empty: all may.
    """

    group: str
    instance_id: str
    model: str
    bus: Bus
    metrics: WorkerMetrics
    clock: Callable[[], float]
    timelines: Timelines = field(default_factory=lambda: Timelines(0))
    spans: SpanSink | None = None
    tenants: Sequence[str] = ()
