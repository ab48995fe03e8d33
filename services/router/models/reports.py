"""Takes the reports of hosts' agents."""

import structlog

from services.router.context import RouterContext
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.errors import InvalidRequest
from shared.messages import HostReport
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class HostReports:
    """Call `listen` once."""

    def __init__(self, context: RouterContext) -> None:
        self._bus = context.bus
        self._models = context.state.models
        self._models_changed = context.models_changed
        self._metrics = context.metrics
        self._clock = context.clock
        self._repeated = RepeatedLog(log)

    async def listen(self) -> None:
        """Subscribes to the reports."""
        listener = Endpoint(self._bus, self._report_bad).listener(HostReport, self.on_report)
        await self._bus.subscribe(subjects.HOST_REPORT, listener, max_pending=1024)

    def on_report(self, report: HostReport, _: Message) -> None:
        """A host reports what it offers and runs."""
        last = self._models.offered.host(report.host)
        if not self._models.observe(report, self._clock()):
            self._metrics.event("host_report_ignored")
            return
        if last is None or _decisive(report) != _decisive(last.report):
            self._models_changed.set()
        if last is None:
            log.info("host", host=report.host, host_instance=report.instance_id,
                     models=[offer.card.name for offer in report.models],
                     budget_bytes=report.budget_bytes)  # fmt: skip

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._repeated.warning("bad host report", subject=message.subject, error=error.message)
        self._metrics.event("bad_host_report")


def _decisive(report: HostReport) -> list[tuple[object, ...]]:
    """What a decision depends on that changes at once: groups begin and end, operators have wishes."""
    groups: list[tuple[object, ...]] = [(group.group, group.phase) for group in report.groups]
    wishes = ((one.card.name, one.wish, one.least_groups, one.most_groups) for one in report.models)
    return [*groups, *wishes]
