"""The router's clock: checks for silent groups by `SelfEchoMonitor`, and drops what is too old."""

import asyncio
import struct
from collections.abc import Awaitable

import structlog

from services.router.context import RouterContext
from services.router.domain.self_echo_monitor import SelfEchoMonitor
from services.router.losses import LossReports
from shared.bus import Message
from shared.errors import RyzError

_NO_ECHO_S = 2.0  # without an echo, after which operators get a log line
_TIMES = struct.Struct("dd")  # of sending, and by which ticks were late until then
log = structlog.get_logger(__name__)


class FleetWatch:
    """Call `listen` once; run `watch_fleet` as a task, and cancel it to end it."""

    def __init__(self, context: RouterContext, losses: LossReports) -> None:
        self._bus = context.bus
        self._fleet = context.fleet
        self._losses = losses
        self._state = context.state
        self._metrics = context.metrics
        self._clock, self._pressure = context.clock, context.pressure
        self._tick_s = context.settings.constants.tick_s
        self._echo = f"{context.bus.new_inbox()}.echo"
        self._monitor = SelfEchoMonitor(
            self._tick_s, context.settings.constants.reconnect_s, self._clock(), self._bus.restored_at
        )
        self._logged_no_echo = False

    async def listen(self) -> None:
        """Subscribes to the echoes."""
        await self._bus.subscribe(self._echo, self.on_echo, max_pending=1024)

    async def watch_fleet(self) -> None:
        """Ticks until it is cancelled."""
        while True:
            await asyncio.sleep(self._tick_s)
            await self.tick(self._clock())

    async def tick(self, now: float) -> None:
        """Excuses groups for what this router missed, and sends the next echo."""
        connected = self._bus.connected
        late_s = self._monitor.on_tick(now, connected, self._bus.restored_at)
        if self._monitor.silence_counts_from > now:
            self._fleet.unsettle(self._monitor.silence_counts_from)
        if late_s:
            self._metrics.event("late_tick")
            self._fleet.excuse(late_s)
        self._state.expire(now)
        if not connected:
            return
        if self._monitor.echo_missing_s(now) > _NO_ECHO_S and not self._logged_no_echo:
            self._logged_no_echo = True
            log.warning("this router does not hear itself, silent groups go unnoticed", subject=self._echo,
                        remedy="let it publish and subscribe to its own inbox")  # fmt: skip
            self._metrics.event("deaf")
        try:
            await self._bus.publish(self._echo, _TIMES.pack(now, self._monitor.late_total_s))
        except RyzError as error:
            log.debug("no echo", problem=error.message)

    def on_echo(self, message: Message) -> Awaitable[None] | None:
        """An echo is back: everything has been read that the broker had for this router when it was sent."""
        if len(message.data) != _TIMES.size:
            return None
        sent_at, late_total_s = _TIMES.unpack(message.data)
        now = self._clock()
        self._logged_no_echo = False
        proven_at = self._monitor.on_echo(min(sent_at, now), late_total_s, now)
        if proven_at is None:
            return None
        delay_s, pressure = self._monitor.delay_s(now), self._pressure(now)
        return (
            self._losses.publish_losses() if self._fleet.expire(now, proven_at, delay_s, pressure) else None
        )
