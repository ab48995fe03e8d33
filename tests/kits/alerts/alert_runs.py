"""Makes a fault on a watched stack under light load, and tells which alerts fired, and when."""

import time
from dataclasses import dataclass, field

from tests.kits.alerts.alert_faults import AlertCase
from tests.kits.alerts.light_load import LightLoad
from tests.kits.alerts.watched_stack import WatchedStack
from tests.kits.prometheus.server import PrometheusServer

LATE_S = 5.0  # beyond the time within which an alert is to fire
COUNTED = '{__name__=~"ryz_router_groups_lost_total|ryz_worker_engine_failures_total"} > 0'
_POLL_S = 0.1


@dataclass(slots=True)
class AlertRun:
    """What one fault raised.

    Attributes:
        row: The fault.
        alert: The alert that is to tell of it.
        fired_s: Seconds from the fault until each alert fired.
        calm_s: Seconds from the end of watching until no alert fired; None: not waited for.
        causes: Counters of losses and failures that are above 0, by their labels.
    """

    row: str
    alert: str
    fired_s: dict[str, float] = field(default_factory=dict)
    calm_s: float | None = None
    causes: dict[str, float] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        """The alerts that should not have fired."""
        return sorted(set(self.fired_s) - {self.alert})

    def line(self) -> str:
        """A row of the table in the documentation."""
        took = f"{self.fired_s[self.alert]:.1f}" if self.alert in self.fired_s else "not"
        calm = "" if self.calm_s is None else f"{self.calm_s:.0f}"
        return f"| {self.row} | `{self.alert}` | {took} | {', '.join(self.others) or 'none'} | {calm} |"


def run_case(
    world: WatchedStack, case: AlertCase, *, last_s: float, after_s: float, calm_s: float
) -> AlertRun:
    """Makes the fault, keeps it for `last_s`, mends it, and watches for another `after_s`.

    Args:
        world: The stack.
        case: The fault.
        last_s: How long the fault lasts at least.
        after_s: How long alerts are watched after it.
        calm_s: How long to wait then until no alert fires; 0: not at all.
    """
    run = AlertRun(case.row, case.alert)
    with LightLoad(world.stack.state.url), world.prometheus() as prometheus:
        assert not prometheus.firing(), prometheus.alerts()
        begin = time.monotonic()
        with case.fault(world):
            while case.alert not in run.fired_s and time.monotonic() < begin + case.within_s + LATE_S:
                watch(prometheus, run, begin, time.monotonic() + _POLL_S)
            watch(prometheus, run, begin, begin + last_s)
        watch(prometheus, run, begin, time.monotonic() + after_s)
        assert not prometheus.broken_rules()
        run.causes = {str(one.labels): one.value for one in prometheus.query(COUNTED)}
        if calm_s:
            world.await_whole()
            mended = time.monotonic()
            while prometheus.firing():
                watch(prometheus, run, begin, time.monotonic() + 1)
                assert time.monotonic() < mended + calm_s, f"{case.row}: {prometheus.alerts()}"
            run.calm_s = time.monotonic() - mended
    world.await_whole()
    return run


def watch(prometheus: PrometheusServer, run: AlertRun, begin: float, end: float) -> None:
    """Notes when alerts fire for the first time."""
    while time.monotonic() < end:
        for name in prometheus.firing():
            run.fired_s.setdefault(name, time.monotonic() - begin)
        time.sleep(_POLL_S)
