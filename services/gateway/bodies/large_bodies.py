"""Bodies of very many values: read and checked one at a time, with rests between them.

Reading one takes up to a tenth of a second of the event loop, a small one less than a thousandth. So the
large ones together have a quarter of the loop at most, and those of the tenants go by turns.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.gateway.bodies.json_shape import MANY_VALUES, may_have_more
from shared.tenant_places import TenantPlaces

REST = 3.0  # times what a body took


def is_large(raw: bytes) -> bool:
    """Whether its tenant must take a turn for it; most bodies are told by their length alone."""
    return len(raw) > MANY_VALUES and may_have_more(raw, MANY_VALUES)


class LargeBodies:
    """Who reads a large body now. How many wait is bounded by the places of requests."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._places = TenantPlaces(1, per_tenant=1)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """The time to read one, without a pause; the next turn begins after a rest."""
        await self._places.enter(tenant)
        began_s = self._clock()
        try:
            yield
        finally:
            rest_s = REST * (self._clock() - began_s)
            asyncio.get_running_loop().call_later(rest_s, self._places.leave, tenant)
