"""Tells routers which requests of services outside run here, as long as they count for a limit.

The router that admitted such a request counts it. It hears of the end at once, before the last frame is sent,
and of what runs every few seconds. If it is gone, another router counts the request from then on.
"""

import asyncio

from services.worker.domain.generation.generation import Generation
from services.worker.leader.context import LeaderContext
from shared import subjects
from shared.bus.endpoint import call
from shared.codec import encode
from shared.errors import RyzError
from shared.messages import CountedRequest, GenerateRequest, RunningCounted, RunningReport
from shared.messages.tenants.running import MAX_REPORTED

REPORT_S = 2.0  # the store keeps what a router has counted for some seconds after that router is gone
CALL_S = 1.0


class RunningReports:
    """The reports of one leader. Run `report_forever` in a task."""

    def __init__(self, context: LeaderContext) -> None:
        self._group = context.group
        self._instance_id = context.instance_id
        self._bus = context.bus
        self._counted: dict[CountedRequest, str] = {}  # with the subject of the router that counts it

    def begin(self, generation: Generation) -> None:
        """A request begins to run."""
        if generation.counted_by:
            self._counted[_named(generation.request)] = generation.counted_by

    def end(self, generation: Generation) -> None:
        """A request has ended."""
        if generation.counted_by and (router := self._counted.pop(_named(generation.request), "")):
            self._tell_ended(router, [_named(generation.request)])

    def note_not_begun(self, request: GenerateRequest, counted_by: str) -> None:
        """Work is not begun: it is refused, or a copy. One that the same router counts may run already."""
        one = _named(request)
        if counted_by and self._counted.get(one) != counted_by:
            self._tell_ended(counted_by, [one])

    async def report_forever(self) -> None:
        """Reports what runs, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.report_running()

    async def report_running(self) -> None:
        """Reports what runs to each router that counts some of it."""
        by_router: dict[str, list[CountedRequest]] = {}
        for one, router in self._counted.items():
            by_router.setdefault(router, []).append(one)
        for router, requests in by_router.items():
            for first in range(0, len(requests), MAX_REPORTED):
                await self._report(router, requests[first : first + MAX_REPORTED])

    async def _report(self, router: str, requests: list[CountedRequest]) -> None:
        report = RunningReport(group=self._group, instance_id=self._instance_id, running=requests)
        for subject in (router, subjects.OUTSIDE_RUNNING):
            try:
                found = await call(self._bus, subject, report, RunningCounted, timeout_s=CALL_S)
            except RyzError:  # gone, or slow; with no router at all it is tried again later
                continue
            ended = []
            for one in report.running:
                if self._counted.get(one) == router:
                    self._counted[one] = found.counted_by
                elif found.counted_by != router:
                    ended.append(one)
            if ended:
                self._tell_ended(found.counted_by, ended)
            return

    def _tell_ended(self, router: str, requests: list[CountedRequest]) -> None:
        report = RunningReport(group=self._group, instance_id=self._instance_id, ended=requests)
        try:
            self._bus.publish_now(router, encode(report))
        except RyzError:  # the router gives up what is not reported any more
            return


def _named(request: GenerateRequest) -> CountedRequest:
    return CountedRequest(
        tenant=request.tenant,
        key_id=request.key_id,
        request_id=request.request_id,
        attempt=request.attempt,
    )
