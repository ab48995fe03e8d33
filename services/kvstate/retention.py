"""Applies a shorter time that a tenant was given for its sessions and responses to those that are stored.

What is written later has the tenant's time from the start. Every replica does it; doing it twice changes
nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from shared.accounts.register import AccountRegister
from shared.errors import RyzError
from shared.telemetry.repeated import RepeatedLog

LOOK_S = 1.0
AWAY_S = 5.0
PAGE = 256  # of what one call to the store looks at
Shorten = Callable[[str, int], Awaitable[int]]  # tenant and days; returns how many went
log = structlog.get_logger(__name__)


class KeptDays:
    """Shortens what is stored.

    Args:
        register: Knows the days of tenants.
        classes: For each field of a tenant's record, the store's method.
    """

    def __init__(self, register: AccountRegister, classes: Mapping[str, Shorten]) -> None:
        self._register = register
        self._classes = classes
        self._done: dict[tuple[str, str], int] = {}
        self._repeated = RepeatedLog(log)

    async def run_forever(self) -> None:
        """Works until cancelled: at the start, and after each change of a tenant's days."""
        seen = -1
        while True:
            pause_s = LOOK_S
            if self._register.changed_at != seen:
                now = self._register.changed_at
                try:
                    await self.apply()
                    seen = now
                except RyzError as error:
                    why = error.message
                    self._repeated.warning("what is over is not removed now", subject="retention", error=why)
                    pause_s = AWAY_S
            await asyncio.sleep(pause_s)

    async def apply(self) -> None:
        """Shortens what is stored of tenants whose days are not those of the last time.

        Raises:
            Unavailable: A store does not answer. The next call goes on.
        """
        for record in self._register.tenants():
            for name, shorten in self._classes.items():
                days, key = getattr(record, name), (record.tenant, name)
                if days and self._done.get(key) != days:
                    gone = await shorten(record.tenant, days)
                    if gone:
                        log.info("removed what is over", tenant=record.tenant, what=name, count=gone)
                self._done[key] = days
