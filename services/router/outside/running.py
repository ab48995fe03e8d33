"""Takes in the reports of leaders on running requests of services outside.

A request that this router does not know was counted by another one, which is gone: it counts here from then
on, whatever is left of its limits, since it runs already.
"""

import asyncio
from contextlib import AsyncExitStack, suppress

import structlog

from services.router.context import RouterContext
from services.router.domain.running_units import AttemptKey, Claim, RunningUnit, RunningUnits
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.client.calls.limit_leases import LimitLeases
from shared.errors import InvalidRequest, Unavailable
from shared.limits.book import Needs
from shared.messages import CountedRequest, RunningCounted, RunningReport
from shared.telemetry.repeated import RepeatedLog

EXPIRE_S = 1.0
log = structlog.get_logger(__name__)


class RunningRequests:
    """Call `listen`, and run `expire_forever` in a task; `kept_running` does both.

    Attributes:
        units: What is counted here.
    """

    def __init__(self, context: RouterContext, leases: LimitLeases) -> None:
        self._subject = f"{context.bus.new_inbox()}.running"
        self.units = RunningUnits(leases.put_back, self._subject)
        self._bus = context.bus
        self._clock = context.clock
        self._metrics = context.metrics
        self._leases = leases
        self._accounts = context.state.accounts
        self._repeated = RepeatedLog(log)

    async def listen(self) -> None:
        """Subscribes to reports on what is counted here, and on what a router that is gone has counted."""
        reports = Endpoint(self._bus, self._report_bad).handler(RunningReport, self.on_report)
        await self._bus.subscribe(self._subject, reports)
        await self._bus.subscribe(subjects.OUTSIDE_RUNNING, reports, queue=subjects.ROUTER_QUEUE)

    async def expire_forever(self) -> None:
        """Gives back what no leader reports, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_S)
            self.units.expire(self._clock())

    def hold(self, key: AttemptKey, needs: Needs) -> RunningUnit:
        """Keeps what a request has just taken of limits of running requests."""
        return self.units.hold(key, _claim(needs), self._clock())

    async def on_report(self, report: RunningReport, _: Message) -> RunningCounted:
        """A leader tells what runs, or has ended.

        Raises:
            Unavailable: The limits of a request that is not known here were not read yet.
        """
        now = self._clock()
        for one in report.ended:
            self.units.end(_key_of(one))
        for one in report.running:
            key = _key_of(one)
            unit = self.units.find(key) or self._take_over(key, one.key_id)
            unit.note_at(report.group, report.instance_id, now)
        return RunningCounted(counted_by=self._subject)

    def _take_over(self, key: AttemptKey, key_id: str) -> RunningUnit:
        if not self._accounts.was_read:  # a router that has just started; the leader asks again
            raise Unavailable("limits were not read yet", reason="accounts_away")
        self._metrics.event("running_taken_over")
        needs = [(lease, 1) for lease in self._leases.party(key[0], key_id).by_measure["running"]]
        for lease, units in needs:
            self._leases.owe(lease, units)
        return self.hold(key, needs)

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._repeated.warning("bad message", subject=message.subject, error=error.message)
        self._metrics.event("bad_running_report")


async def kept_running(context: RouterContext, leases: LimitLeases, stack: AsyncExitStack) -> RunningRequests:
    """Counts that are kept until the stack closes."""
    running = RunningRequests(context, leases)
    await running.listen()
    expiring = asyncio.create_task(running.expire_forever())

    async def end() -> None:
        expiring.cancel()
        with suppress(asyncio.CancelledError):
            await expiring

    stack.push_async_callback(end)
    return running


def _claim(needs: Needs) -> Claim:
    return [(lease, units, lease.began_ms) for lease, units in needs]


def _key_of(one: CountedRequest) -> AttemptKey:
    return one.tenant, one.request_id, one.attempt
