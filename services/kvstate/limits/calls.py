"""The call of gateways and routers about limits."""

import time
from collections.abc import Callable

from services.kvstate.call_server import CallKind
from services.kvstate.limits.store import LimitStore, PoolAsk, TakeAsk
from services.kvstate.limits.used import UsedSoFar
from shared import subjects
from shared.errors import InvalidRequest
from shared.limits.windows import Window, windows_around
from shared.messages import LeasedLimits, LeaseLimits, LimitLease, LimitPool


class LimitCalls:
    """Answers the call.

    Args:
        store: Counts.
        used: What is known of days and months besides.
        clock: Seconds since 1970.
    """

    def __init__(self, store: LimitStore, used: UsedSoFar, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._used = used
        self._clock = clock

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the call with its name, subject and type."""
        return (CallKind("lease_limits", subjects.LEASE_LIMITS, LeaseLimits, self._lease),)

    async def _lease(self, asked: LeaseLimits) -> LeasedLimits:
        now_ms = int(self._clock() * 1000)
        pools = [await self._pool(pool, now_ms) for pool in asked.pools]
        takes = [TakeAsk(take.count, take.pools, take.units) for take in asked.takes]
        for take in takes:
            if len(take.pools) != len(take.units) or not all(0 <= one < len(pools) for one in take.pools):
                raise InvalidRequest("`takes` names pools that the call does not have", param="takes")
        found = await self._store.lease(asked.holder, asked.number, pools, takes)
        leases = [
            LimitLease(granted=lease.granted, left=lease.left, began_ms=lease.began_ms, ends_ms=lease.ends_ms)
            for lease in found.pools
        ]
        return LeasedLimits(leases=leases, now_ms=found.now_ms, holders=found.holders)

    async def _pool(self, pool: LimitPool, now_ms: int) -> PoolAsk:
        name = f"{pool.tenant}:{pool.key_id}:{pool.measure}:{pool.window}"
        windows: tuple[int, ...] = ()
        used = 0
        if pool.window != "running":
            windows = windows_around(pool.window, now_ms, pool.time_zone)
            if pool.window != "minute":
                window = Window(windows[1], windows[2])
                sums = await self._used.used(pool.tenant, pool.key_id, pool.window, window)
                used = sums.money if pool.measure == "money" else sums.tokens
        return PoolAsk(name, pool.limit, pool.began_ms, pool.had, pool.ahead, windows, used, pool.seen)
