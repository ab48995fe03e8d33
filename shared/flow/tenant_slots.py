"""Shares a few slots for work between tenants: none gets all, and waiting ones are served in rotation.

For one event loop.
"""

import asyncio
from collections import deque

NO_BOUND = 1 << 62


class TooManyWait(Exception):
    """As many calls of the tenant wait as may."""


class TenantSlots:
    """Slots for work. `take` or `enter` one, then `leave` it.

    A slot that is left goes at once to the next tenant that waits and may have one, in the order of their
    turns. The work of one tenant goes in order.

    Args:
        slots: Slots of all tenants together.
        per_tenant: Slots that one tenant may have.
        max_waiting: Calls of one tenant that may wait.
    """

    def __init__(self, slots: int, *, per_tenant: int, max_waiting: int = NO_BOUND) -> None:
        self._free = slots
        self._per_tenant = per_tenant
        self._max_waiting = max_waiting
        self._held: dict[str, int] = {}  # no entry for none
        self._waiting: dict[
            str, deque[asyncio.Future[None]]
        ] = {}  # in the order of the rotation; none is empty

    def take(self, tenant: str) -> bool:
        """Takes a slot for the tenant if it may have one now; returns whether it did."""
        held = self._held.get(tenant, 0)
        if not self._free or held >= self._per_tenant:
            return False
        self._free -= 1
        self._held[tenant] = held + 1
        return True

    def holds(self, tenant: str) -> bool:
        """Returns whether the tenant has a slot."""
        return tenant in self._held

    async def enter(self, tenant: str) -> None:
        """Takes a slot for the tenant as soon as it may have one.

        Raises:
            TooManyWait: It would have to wait, and as many calls of the tenant wait as may.
        """
        if self.take(tenant):
            return
        if len(self._waiting.get(tenant, ())) >= self._max_waiting:
            raise TooManyWait
        queue = self._waiting.setdefault(tenant, deque())
        waiter = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it got a slot before
                self.leave(tenant)
            else:
                queue.remove(waiter)
                if not queue:
                    del self._waiting[tenant]
            raise

    def leave(self, tenant: str) -> None:
        """Gives a slot back; the next one in the rotation gets it at once."""
        self._free += 1
        if self._held[tenant] == 1:
            del self._held[tenant]
        else:
            self._held[tenant] -= 1
        for waiting, queue in self._waiting.items():
            waiter = next(
                (waiter for waiter in queue if not waiter.cancelled()), None
            )  # those leave by themselves
            if waiter is not None and self.take(waiting):
                queue.remove(waiter)
                del self._waiting[waiting]
                if queue:
                    self._waiting[waiting] = queue  # behind the others
                waiter.set_result(None)
                return
