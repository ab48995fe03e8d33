"""Loads the pins of all sessions, regularly and after the broker was away."""

import asyncio

import structlog

from services.router.domain.pins import Pin, PinTable
from services.router.metrics import RouterMetrics
from shared.bus import Bus
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import RyzError

_POLL_S = 0.25  # how soon a connection that is back is seen
_RETRY_S = 2.0
_PAGE = 1000
log = structlog.get_logger(__name__)


class PinSync:
    """Keeps a `PinTable` in step with the KV state service; while that is away, the known pins stand."""

    def __init__(self, bus: Bus, pins: PinTable, metrics: RouterMetrics, refresh_s: float) -> None:
        self._bus = bus
        self._pins = pins
        self._metrics = metrics
        self._refresh_s = refresh_s
        self._client = SessionsClient(bus)

    async def load_pins(self) -> bool:
        """Load all pins; False if the KV state service did not answer."""
        self._pins.start_list()
        found: list[Pin] = []
        cursor = ""
        try:
            while True:
                page = await self._client.pins(limit=_PAGE, cursor=cursor)
                found.extend((pin.tenant, pin.session_id, pin.group) for pin in page.pins)
                if not page.cursor:
                    break
                cursor = page.cursor
        except RyzError as error:
            log.debug("pins not loaded, the known ones stand", error=error.message, known=len(self._pins))
            self._metrics.event("pins_not_loaded")
            return False
        if not self._pins.replace_list(found):
            log.warning(
                "too many pins, some do not count", pins=len(found), remedy="raise RYZ_ROUTER_PINS_MAX"
            )
            self._metrics.event("pins_over_limit")
        return True

    async def keep_pins(self) -> None:
        """Load them every `refresh_s`, and when the broker is back, as changes may have been missed."""
        loop = asyncio.get_running_loop()
        asked_at = due_at = float("-inf")
        while True:
            now = loop.time()
            if self._bus.connected and (now >= due_at or self._bus.restored_at > asked_at):
                asked_at = now
                wait_s = self._refresh_s if await self.load_pins() else min(_RETRY_S, self._refresh_s)
                due_at = loop.time() + wait_s
            await asyncio.sleep(min(_POLL_S, self._refresh_s))
