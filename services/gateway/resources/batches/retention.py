"""Removes files and batches of tenants that have a time of their own for them, when it is over.

Callers do not see such things from that moment on (`TenantFiles`, `BatchLog`); this removes their bytes.
Every gateway does it, and what another one has removed is passed over.
"""

import asyncio
import time

import structlog

from services.gateway.resources.batches.service import BatchService
from shared.accounts.register import AccountRegister
from shared.errors import RyzError
from shared.telemetry.repeated import RepeatedLog

LOOK_S = 2.0  # between two looks whether a tenant's days were changed
EVERY_S = 600.0
log = structlog.get_logger(__name__)


class Retention:
    """Removes what is over.

    Args:
        batches: The batches and, with them, the files.
        register: Knows the days of tenants.
    """

    def __init__(self, batches: BatchService, register: AccountRegister) -> None:
        self._batches = batches
        self._register = register
        self._done: dict[str, tuple[int, int]] = {}
        self._done_at = float("-inf")
        self._repeated = RepeatedLog(log)

    async def run_forever(self) -> None:
        """Works until cancelled: after each change of a tenant's days at once, else every `EVERY_S`."""
        while True:
            if time.monotonic() - self._done_at >= EVERY_S:
                self._done, self._done_at = {}, time.monotonic()
            try:
                await self.remove_old()
            except RyzError as error:
                why = error.message
                self._repeated.warning("what is over is not removed now", subject="retention", error=why)
            await asyncio.sleep(LOOK_S)

    async def remove_old(self) -> None:
        """Removes what is over of tenants whose days are not those of the last time.

        Raises:
            Unavailable: A store does not answer. The next call goes on.
        """
        for record in self._register.tenants():
            days = record.file_days, record.batch_days
            if not any(days) or self._done.get(record.tenant) == days:
                continue
            await self._batches.parts.files.files_of(record.tenant)  # which removes those that are over
            if record.batch_days:
                await self._batches.remove_old(record.tenant)
            self._done[record.tenant] = days
