"""Announces this router to the others with the requests that wait at it, and counts the others."""

import asyncio

import structlog

from services.router.context import RouterContext
from services.router.domain.router_count import ANNOUNCE_S
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.codec import encode
from shared.errors import InvalidRequest, RyzError
from shared.messages import RouterAlive

log = structlog.get_logger(__name__)


class RouterPresence:
    """Call `listen` once, run `announce` as a task while requests are taken, and `leave` before they end."""

    def __init__(self, context: RouterContext) -> None:
        self._bus = context.bus
        self._routers = context.fleet.routers
        self._demand = context.state.models.demand
        self._models_changed = context.models_changed
        self._announced: set[str] = set()  # models that were wanted here when it was said last
        self._metrics = context.metrics
        self._clock = context.clock
        self._router_id = context.settings.instance_id
        self._leaves = False

    async def listen(self) -> None:
        """Subscribes to what other routers say of themselves."""
        listener = Endpoint(self._bus, self._report_bad).listener(RouterAlive, self.on_router)
        await self._bus.subscribe(subjects.ROUTER_ALIVE, listener, max_pending=1024)

    async def announce(self) -> None:
        """Says once a second that this router takes requests, until it leaves."""
        while not self._leaves:
            await self._publish(takes=True)
            await asyncio.sleep(ANNOUNCE_S)

    async def announce_wanted(self) -> None:
        """Says at once which models are wanted here, if the others have not been told of one of them."""
        if not self._leaves and not self._demand.own(self._clock()).keys() <= self._announced:
            await self._publish(takes=True)

    async def leave(self) -> None:
        """Says that this router takes no more requests."""
        self._leaves = True
        await self._publish(takes=False)

    def on_router(self, router: RouterAlive, _: Message) -> None:
        """A router runs, or is about to end."""
        if router.router_id == self._router_id:
            return
        now = self._clock()
        if not router.takes:
            self._routers.left(router.router_id)
            self._demand.leave(router.router_id)
            return
        self._routers.heard(router.router_id, now)
        if self._demand.hear(router.router_id, router.wanted, now):
            self._models_changed.set()

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        log.warning("bad message", subject=message.subject, error=error.message)
        self._metrics.event("bad_router_alive")

    async def _publish(self, *, takes: bool) -> None:
        wanted = self._demand.own(self._clock()) if takes else {}
        self._announced = set(wanted)
        alive = RouterAlive(router_id=self._router_id, takes=takes, wanted=wanted)
        try:
            await self._bus.publish(subjects.ROUTER_ALIVE, encode(alive))
        except RyzError as error:
            log.debug("not announced", problem=error.message)
