"""Takes turns for bodies of very many values: they are read and checked one at a time, with rests between.

Reading a large body blocks the event loop for up to 0.1 s, a small one for less than 1 ms. So the large ones
together have a quarter of the loop at most, and tenants take turns.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.gateway.admission.bodies.json_shape import MANY_VALUES, may_have_more
from shared.flow.tenant_slots import TenantSlots

REST = 3.0  # times the time that the body before took


def is_large(raw: bytes) -> bool:
    """Returns whether a body needs a turn; for most bodies the length alone decides."""
    return len(raw) > MANY_VALUES and may_have_more(raw, MANY_VALUES)


class LargeBodies:
    """The turns of large bodies. The places of requests bound how many wait."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._slots = TenantSlots(1, per_tenant=1)

    @asynccontextmanager
    async def body_slot(self, tenant: str) -> AsyncIterator[None]:
        """A turn to read one body without awaiting anything; the next turn begins after a rest."""
        await self._slots.enter(tenant)
        began_s = self._clock()
        try:
            yield
        finally:
            rest_s = REST * (self._clock() - began_s)
            asyncio.get_running_loop().call_later(rest_s, self._slots.leave, tenant)
