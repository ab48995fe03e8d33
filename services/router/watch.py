"""The router's clock: looks for silent groups, with the care of `Listening`, and drops what is too old."""

import asyncio
import struct

import structlog

from services.router.domain.self_echo_monitor import Listening
from services.router.losses import Losses
from services.router.router_context import Parts
from shared.bus import Message
from shared.errors import RyzError

_DEAF_S = 2.0  # without an echo, from which on somebody should know
_TIME = struct.Struct("d")
log = structlog.get_logger(__name__)


class Watch:
    """Call `listen` once; run `run` as a task, and cancel it to end it."""

    def __init__(self, parts: Parts, losses: Losses) -> None:
        self._bus = parts.bus
        self._fleet = parts.fleet
        self._losses = losses
        self._memory = parts.memory
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._tick_s = parts.settings.router_tick_s
        self._echo = f"{parts.bus.new_inbox()}.echo"
        self._listening = Listening(
            self._tick_s, parts.settings.router_reconnect_s, self._clock(), self._bus.restored_at
        )
        self._told_deaf = False

    async def listen(self) -> None:
        """Hears itself from here on."""
        await self._bus.subscribe(self._echo, self.on_echo, max_pending=1024)

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await asyncio.sleep(self._tick_s)
            await self.tick(self._clock())

    async def tick(self, now: float) -> None:
        """One tick: what this router missed is excused, and the next echo is on its way."""
        connected = self._bus.connected
        late_s = self._listening.tick(now, connected, self._bus.restored_at)
        if self._listening.trusted_from > now:
            self._fleet.unsettle(self._listening.trusted_from)
        if late_s:
            self._metrics.event("late_tick")
            self._fleet.excuse(late_s)
        self._memory.expire(now)
        if not connected:
            return
        if self._listening.deaf_s(now) > _DEAF_S and not self._told_deaf:
            self._told_deaf = True
            log.warning("this router does not hear itself, silent groups go unnoticed", subject=self._echo,
                        remedy="let it publish and subscribe to its own inbox")  # fmt: skip
            self._metrics.event("deaf")
        try:
            await self._bus.publish(self._echo, _TIME.pack(now))
        except RyzError as error:
            log.debug("no echo", problem=error.message)

    async def on_echo(self, message: Message) -> None:
        """Everything has been read that the broker had for us when this was sent."""
        if len(message.data) != _TIME.size:
            return
        (sent_at,) = _TIME.unpack(message.data)
        now = self._clock()
        self._told_deaf = False
        proven_at = self._listening.proof(min(sent_at, now), now)
        if proven_at is not None and self._fleet.expire(now, proven_at):
            await self._losses.tell()
