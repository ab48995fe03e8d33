"""The store of limits on Redis: a hash for each limit and window, which expires with it."""

from collections.abc import Sequence
from typing import Any

from services.kvstate.limits import scripts
from services.kvstate.limits.store import HOLD_MS, HOLDER_MS, Leased, PoolAsk, PoolLease, TakeAsk
from services.kvstate.redis.link import RedisLink

_FIELDS = 4  # of each pool in the answer


class RedisLimitStore:
    """Implements `LimitStore`.

    Args:
        link: To Redis.
        hold_ms: How long running requests are held for a holder that says nothing.
    """

    def __init__(self, link: RedisLink, hold_ms: int = HOLD_MS) -> None:
        self._link = link
        self._hold_ms = hold_ms

    async def lease(
        self, holder: str, number: int, pools: Sequence[PoolAsk], takes: Sequence[TakeAsk]
    ) -> Leased:
        """See `LimitStore.lease`."""
        values: list[Any] = [holder, number, self._hold_ms, HOLDER_MS, len(pools), len(takes)]
        for pool in pools:
            values += (pool.name, pool.limit, pool.began_ms, pool.had, pool.ahead, pool.used, pool.seen)
            values += (len(pool.windows), *pool.windows)
        for take in takes:
            values += (take.requests, len(take.pools))
            for position, units in zip(take.pools, take.units, strict=True):
                values += (position, units)
        (answer,) = await self._link.run_script(scripts.LEASE, [((), values)])
        now_ms, holders, *found = answer
        leases = [PoolLease(*found[start : start + _FIELDS]) for start in range(0, len(found), _FIELDS)]
        return Leased(leases, now_ms, holders)

    async def close(self) -> None:
        """See `LimitStore.close`."""
        await self._link.close()
