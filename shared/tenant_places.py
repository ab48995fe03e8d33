"""A few places for the work of many tenants: none of them has all, and those that wait go by turns.

Decides who goes on when; what is done in a place is the caller's. For one event loop.
"""

import asyncio
from collections import deque

NO_BOUND = 1 << 62


class TooManyWait(Exception):
    """The tenant has as many waiting as it may have."""


class TenantPlaces:
    """`take` or `enter` a place, then `leave` it.

    While a place is free, each tenant that waits has as many as it may have: `leave` gives a place on.
    A tenant's own work goes in order.

    places: of all tenants together. per_tenant: places that one may have. max_waiting: of one tenant.
    """

    def __init__(self, places: int, *, per_tenant: int, max_waiting: int = NO_BOUND) -> None:
        self._free = places
        self._per_tenant = per_tenant
        self._max_waiting = max_waiting
        self._held: dict[str, int] = {}  # no entry: none
        self._waiting: dict[
            str, deque[asyncio.Future[None]]
        ] = {}  # in the order of their turns; none is empty

    def take(self, tenant: str) -> bool:
        """Takes a place for the tenant if it may have one now."""
        held = self._held.get(tenant, 0)
        if not self._free or held >= self._per_tenant:
            return False
        self._free -= 1
        self._held[tenant] = held + 1
        return True

    async def enter(self, tenant: str) -> None:
        """Takes a place for the tenant as soon as it may have one.

        Raises:
            TooManyWait: it has to wait, and as many of the tenant wait as may.
        """
        if self.take(tenant):
            return
        if len(self._waiting.get(tenant, ())) >= self._max_waiting:
            raise TooManyWait
        queue = self._waiting.setdefault(tenant, deque())
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place came first
                self.leave(tenant)
            else:
                queue.remove(turn)
                if not queue:
                    del self._waiting[tenant]
            raise

    def leave(self, tenant: str) -> None:
        """Gives a place back; the next in turn has it at once."""
        self._free += 1
        if self._held[tenant] == 1:
            del self._held[tenant]
        else:
            self._held[tenant] -= 1
        for waiting, queue in self._waiting.items():
            turn = next((turn for turn in queue if not turn.cancelled()), None)  # those leave by themselves
            if turn is not None and self.take(waiting):
                queue.remove(turn)
                del self._waiting[waiting]
                if queue:
                    self._waiting[waiting] = queue  # behind the others
                turn.set_result(None)
                return
