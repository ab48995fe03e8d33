"""A store of responses in memory: for tests, and as the plain form of what the Lua scripts do."""

from collections.abc import Callable
from dataclasses import dataclass

from services.kvstate.responses.store import (
    FoundChain,
    FoundResponse,
    PutResult,
    ResponseEntry,
    ResponseQuotas,
)

_NO_QUOTAS = ResponseQuotas()
ResponseKey = tuple[str, str]


@dataclass(slots=True)
class _KeptResponse:
    entry: ResponseEntry
    expires_at: float
    used_at: float
    owner: str
    lease_until: float


class MemoryResponseStore:
    """Implements `ResponseStore`.

    Args:
        ttl_s: How long records live.
        clock: Returns seconds.
        quotas: Limits of tenants.
    """

    def __init__(
        self, *, ttl_s: float, clock: Callable[[], float], quotas: ResponseQuotas = _NO_QUOTAS
    ) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._quotas = quotas
        self._kept: dict[ResponseKey, _KeptResponse] = {}  # the longest unused first

    async def put(self, entry: ResponseEntry) -> PutResult:
        """See `ResponseStore.put`."""
        self._purge()
        key, now = (entry.tenant, entry.response_id), self._clock()
        kept = self._kept.get(key)
        if kept is not None and kept.entry.ended:
            return PutResult(kept.entry.record == entry.record)
        if kept is None and not entry.is_new:
            return PutResult(stored=False)
        going = self._to_remove(entry)
        if going is None:
            return PutResult(stored=False, over_quota=True)
        for other in going:
            del self._kept[other]
        self._kept.pop(key, None)
        self._kept[key] = _KeptResponse(
            entry, now + self._ttl_s, now, entry.owner, now + entry.lease_ms / 1000
        )
        return PutResult(stored=True, dropped=len(going))

    async def get(self, tenant: str, response_id: str) -> FoundResponse | None:
        """See `ResponseStore.get`."""
        self._purge()
        kept = self._kept.get((tenant, response_id))
        return None if kept is None else FoundResponse(kept.entry.record, self._is_free(kept))

    async def chain(self, tenant: str, response_id: str, room: int, limit: int) -> FoundChain:
        """See `ResponseStore.chain`."""
        self._purge()
        records: list[bytes] = []
        name = response_id
        while name:
            kept = self._kept.pop((tenant, name), None)
            if kept is None:
                return FoundChain(records, missing=name)
            self._kept[tenant, name] = kept
            size = len(kept.entry.record)
            if records and (size > room or len(records) >= limit):
                return FoundChain(records, rest=name)
            kept.used_at = self._clock()
            kept.expires_at = kept.used_at + self._ttl_s
            records.append(kept.entry.record)
            room -= size
            name = kept.entry.parent
        return FoundChain(records)

    async def lease(
        self, tenant: str, response_id: str, owner: str, lease_ms: int, *, takes_over: bool
    ) -> bool:
        """See `ResponseStore.lease`."""
        self._purge()
        kept = self._kept.get((tenant, response_id))
        if kept is None or kept.entry.ended:
            return False
        if not (takes_over or kept.owner == owner or self._is_free(kept)):
            return False
        kept.owner, kept.lease_until = owner, self._clock() + lease_ms / 1000
        return True

    async def claim(self, owner: str, lease_ms: int, limit: int) -> list[tuple[str, str]]:
        """See `ResponseStore.claim`."""
        self._purge()
        free = [key for key, kept in self._kept.items() if self._is_free(kept)]
        free.sort(key=lambda key: self._kept[key].lease_until)
        for key in free[:limit]:
            self._kept[key].owner = owner
            self._kept[key].lease_until = self._clock() + lease_ms / 1000
        return free[:limit]

    async def delete(self, tenant: str, response_id: str) -> bool:
        """See `ResponseStore.delete`."""
        self._purge()
        return self._kept.pop((tenant, response_id), None) is not None

    async def ids_of(self, tenant: str, limit: int) -> list[str]:
        """See `ResponseStore.ids_of`."""
        self._purge()
        mine = [(kept.expires_at, key[1]) for key, kept in self._kept.items() if key[0] == tenant]
        return [response_id for _, response_id in sorted(mine)][:limit]

    async def shorten(self, tenant: str, days: int) -> int:
        """See `ResponseStore.shorten`."""
        self._purge()
        before = len(self._kept)
        for key, kept in self._kept.items():
            if key[0] == tenant and kept.entry.ended:
                kept.expires_at = min(kept.expires_at, kept.used_at + days * 86_400)
        self._purge()
        return before - len(self._kept)

    async def close(self) -> None:
        """See `ResponseStore.close`."""

    def _is_free(self, kept: _KeptResponse) -> bool:
        return not kept.entry.ended and kept.lease_until <= self._clock()

    def _to_remove(self, entry: ResponseEntry) -> list[ResponseKey] | None:
        """Returns the records to drop for the entry, or None if dropping all of them is not enough."""
        mine = {key: kept for key, kept in self._kept.items() if key[0] == entry.tenant}
        mine.pop((entry.tenant, entry.response_id), None)
        count = len(mine) + 1 - self._quotas.response_max_per_tenant
        num_bytes = (
            sum(kept.entry.size for kept in mine.values())
            + entry.size
            - self._quotas.response_bytes_per_tenant
        )
        going = []
        for key, kept in mine.items():
            if count <= 0 and num_bytes <= 0:
                break
            if kept.entry.ended:
                going.append(key)
                count, num_bytes = count - 1, num_bytes - kept.entry.size
        return going if count <= 0 and num_bytes <= 0 else None

    def _purge(self) -> None:
        now = self._clock()
        for key in [key for key, kept in self._kept.items() if kept.expires_at <= now]:
            del self._kept[key]
