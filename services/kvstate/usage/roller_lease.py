"""Lets one replica of the service add usage up. Without the lease store all do, which is only more work."""

import time

from services.kvstate.leases.store import LeaseStore
from shared.errors import RyzError

NAME = "usage"
LEASE_MS = 5000
ASK_S = 1.5


class RollerLease:
    """The lease of one replica."""

    def __init__(self, store: LeaseStore, holder: str) -> None:
        self._store = store
        self._holder = holder
        self._asked_at = float("-inf")
        self._mine = False

    async def hold(self) -> bool:
        """Returns whether this replica is to work; asks the store now and then."""
        now = time.monotonic()
        if now - self._asked_at >= ASK_S:
            self._asked_at = now
            try:
                held = await self._store.claim(NAME, self._holder, LEASE_MS)
            except RyzError:
                self._mine = True
            else:
                self._mine = held.holder == self._holder
        return self._mine
