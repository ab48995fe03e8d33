"""The store of leases on Redis: a hash for each. Times are those of Redis."""

from services.kvstate.leases import scripts
from services.kvstate.leases.store import LeaseState
from services.kvstate.redis.link import RedisLink


class RedisLeaseStore:
    """Implements `LeaseStore`."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def claim(self, name: str, holder: str, ttl_ms: int, heard_epoch: int = 0) -> LeaseState:
        """See `LeaseStore.claim`."""
        ((found, epoch, left_ms),) = await self._link.run_script(
            scripts.CLAIM, [((), (name, holder, ttl_ms, heard_epoch))]
        )
        return LeaseState(found.decode(), epoch, left_ms)

    async def close(self) -> None:
        """See `LeaseStore.close`."""
        await self._link.close()
