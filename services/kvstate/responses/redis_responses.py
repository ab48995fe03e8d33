"""The store of responses on Redis: a hash for each, and for each tenant its sizes and times of expiry.

Every change is one script; `redis/link.py` has connections, time limits and the circuit.
"""

from services.kvstate.domain import keys
from services.kvstate.domain.session_quota import DAY_MS, DaysOf, no_own_days
from services.kvstate.redis.link import RedisLink
from services.kvstate.responses import scripts
from services.kvstate.responses.store import (
    FoundChain,
    FoundResponse,
    PutResult,
    ResponseEntry,
    ResponseQuotas,
)
from services.kvstate.retention import PAGE

_NO_QUOTAS = ResponseQuotas()
_OVER_QUOTA = 3


class RedisResponseStore:
    """Implements `ResponseStore`.

    Args:
        ttl_s: How long records live.
        days_of: How many days those of a tenant live; 0: for `ttl_s`.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        ttl_s: float,
        quotas: ResponseQuotas = _NO_QUOTAS,
        days_of: DaysOf = no_own_days,
    ) -> None:
        self._link = link
        self._ttl_ms = int(ttl_s * 1000)
        self._days_of = days_of
        self._quotas = quotas

    async def put(self, entry: ResponseEntry) -> PutResult:
        """See `ResponseStore.put`."""
        values = (
            entry.tenant,
            entry.response_id,
            self._lives_ms(entry.tenant),
            self._quotas.response_max_per_tenant,
            self._quotas.response_bytes_per_tenant,
            entry.record,
            entry.parent,
            int(entry.ended),
            int(entry.is_new),
            entry.owner,
            entry.lease_ms,
            entry.size,
        )
        ((verdict, dropped),) = await self._link.run_script(scripts.PUT, [((), values)])
        return PutResult(verdict == 1, verdict == _OVER_QUOTA, dropped)

    async def get(self, tenant: str, response_id: str) -> FoundResponse | None:
        """See `ResponseStore.get`."""
        (found,) = await self._link.run_script(scripts.GET, [((), (tenant, response_id))])
        return FoundResponse(bytes(found[0]), bool(found[1])) if found else None

    async def chain(self, tenant: str, response_id: str, room: int, limit: int) -> FoundChain:
        """See `ResponseStore.chain`."""
        values = (tenant, response_id, room, limit, self._lives_ms(tenant))
        ((rest, missing, *records),) = await self._link.run_script(scripts.CHAIN, [((), values)])
        return FoundChain([bytes(record) for record in records], rest.decode(), missing.decode())

    async def lease(
        self, tenant: str, response_id: str, owner: str, lease_ms: int, *, takes_over: bool
    ) -> bool:
        """See `ResponseStore.lease`."""
        values = (tenant, response_id, owner, lease_ms, int(takes_over))
        (held,) = await self._link.run_script(scripts.LEASE, [((), values)])
        return bool(held)

    async def claim(self, owner: str, lease_ms: int, limit: int) -> list[tuple[str, str]]:
        """See `ResponseStore.claim`."""
        (members,) = await self._link.run_script(scripts.CLAIM, [((), (owner, lease_ms, limit))])
        return [keys.split_member(member.decode()) for member in members]

    async def delete(self, tenant: str, response_id: str) -> bool:
        """See `ResponseStore.delete`."""
        (there,) = await self._link.run_script(scripts.DELETE, [((), (tenant, response_id))])
        return bool(there)

    async def ids_of(self, tenant: str, limit: int) -> list[str]:
        """See `ResponseStore.ids_of`."""
        order = f"{keys.RESPONSE_ENDS_PREFIX}{tenant}"
        (ids,) = await self._link.pipeline([("ZRANGE", order, 0, limit - 1)])
        return [response_id.decode() for response_id in ids]

    async def shorten(self, tenant: str, days: int) -> int:
        """See `ResponseStore.shorten`."""
        at = gone = 0
        while at >= 0:
            values = (tenant, days * DAY_MS, at, PAGE)
            ((at, dropped),) = await self._link.run_script(scripts.SHORTEN, [((), values)])
            gone += dropped
        return gone

    def _lives_ms(self, tenant: str) -> int:
        return self._days_of(tenant) * DAY_MS or self._ttl_ms

    async def close(self) -> None:
        """See `ResponseStore.close`."""
        await self._link.close()
