"""Publishes the losses of groups, and takes in those that other routers and the broker report.

Callers resume their requests elsewhere as soon as a router has given a group up. Each router publishes the
losses that it found itself, once for each time that it gives a group up.
"""

import structlog

from services.router.context import RouterContext
from services.router.domain.groups.loss import read_disconnect
from services.router.domain.running_units import RunningUnits
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.codec import encode
from shared.errors import InvalidRequest, RyzError
from shared.messages import GroupDown
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class LossReports:
    """Subscriptions and publications around the losses of a `Fleet`.

    Args:
        running: Counts requests that end with their leader.
    """

    def __init__(self, context: RouterContext, running: RunningUnits) -> None:
        self._running = running
        self._bus = context.bus
        self._fleet = context.fleet
        self._metrics = context.metrics
        self._clock = context.clock
        self._repeated = RepeatedLog(log)
        self._router_id = context.settings.instance_id

    async def listen(self) -> None:
        """Subscribes; every router gets all losses."""
        news = Endpoint(self._bus, self._report_bad).handler(GroupDown, self.on_news, answers_bad=False)
        await self._bus.subscribe(subjects.GROUP_DOWN, news, max_pending=4096)
        await self._bus.subscribe(subjects.BROKER_DISCONNECT, self.on_disconnect)

    async def publish_losses(self) -> None:
        """Log and count the losses that the fleet recorded, and publish this router's own."""
        for loss in self._fleet.take_losses():
            self._running.end_group(loss.group, loss.instance_id)
            if loss.leaving:
                log.info("group left", group=loss.group, group_instance=loss.instance_id, reason=loss.reason)
                self._metrics.event("group_left")
            else:
                log.warning("group lost", group=loss.group, group_instance=loss.instance_id,
                            reason=loss.reason, cause=loss.cause,
                            silent_s=round(loss.silent_s, 3), limit_s=round(loss.limit_s, 3),
                            found_by="us" if loss.own else "another router")  # fmt: skip
                self._metrics.event("group_lost")
                self._metrics.lost(loss.cause or loss.reason, loss.group)
            if loss.tripped:
                log.warning("breaker tripped", group=loss.group, reason="losses")
                self._metrics.event("group_tripped_by_losses")
            if loss.own:
                await self._publish(
                    GroupDown(
                        group=loss.group,
                        instance_id=loss.instance_id,
                        reason=loss.reason,
                        router_id=self._router_id,
                        cause=loss.cause,
                    )
                )

    async def on_news(self, news: GroupDown, _: Message) -> None:
        """Another router gave a group up, or this one did."""
        if news.router_id != self._router_id:
            self._fleet.on_group_down(news, self._clock())
            await self.publish_losses()

    async def on_disconnect(self, message: Message) -> None:
        """Handles a broker's disconnect report."""
        try:
            instance_id = read_disconnect(message.data)
        except ValueError as error:
            self._repeated.warning("bad message", subject=message.subject, error=str(error)[:200])
            self._metrics.event("bad_broker_news")
            return
        if instance_id is not None:
            self._metrics.event("leader_disconnected")
            self._fleet.on_disconnect(instance_id, self._clock())
            await self.publish_losses()

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._repeated.warning("bad message", subject=message.subject, error=error.message)
        self._metrics.event("bad_group_down")

    async def _publish(self, news: GroupDown) -> None:
        try:
            await self._bus.publish(subjects.GROUP_DOWN, encode(news))
        except RyzError as error:  # callers find out by themselves, later
            log.warning("loss not told", group=news.group, problem=error.message)
            self._metrics.event("loss_not_told")
