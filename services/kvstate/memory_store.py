"""A session store in this process's memory: for tests, and the plain reading of what the Redis scripts do."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from services.kvstate.domain import keys
from services.kvstate.domain.records import Cursor, Entry, Verdict, judge
from services.kvstate.store import Fate, Page, Pins
from shared.codec import decode
from shared.messages import Pinned, SessionSummary


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: Entry
    expires_at: float
    group: str = ""  # that it is pinned to


class MemoryStore:
    """Implements `SessionStore`. `clock` gives seconds; records live for `ttl_s` of them."""

    def __init__(self, *, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._deleted_ms: dict[tuple[str, str], int] = {}

    async def get(self, tenant: str, session_id: str) -> bytes | None:
        """See `SessionStore.get`."""
        kept = self._alive(tenant, session_id)
        return kept.entry.record if kept else None

    async def put(self, entries: Sequence[Entry]) -> list[bool]:
        """See `SessionStore.put`."""
        self._sweep()
        verdicts = []
        for entry in entries:
            kept = self._alive(entry.tenant, entry.session_id)
            stored = kept.entry if kept else None
            verdict = judge(
                stored.version if stored else None,
                stored.record if stored else None,
                entry.version,
                entry.record,
                created_ms=entry.created_ms,
                deleted_ms=self._deleted_ms.get((entry.tenant, entry.session_id)),
                stored_request=stored.last_request if stored else "",
                lineage=entry.lineage,
            )
            if verdict is Verdict.STORE:
                group = kept.group if kept else ""
                self._kept[entry.tenant, entry.session_id] = _Kept(entry, self._clock() + self._ttl_s, group)
                self._deleted_ms.pop((entry.tenant, entry.session_id), None)
            verdicts.append(verdict is not Verdict.STALE)
        return verdicts

    async def page(self, tenant: str, limit: int, after: Cursor | None) -> Page:
        """See `SessionStore.page`."""
        self._sweep()
        mine = [kept for (owner, _), kept in self._kept.items() if owner == tenant]
        mine.sort(key=lambda kept: (kept.entry.score_ms, kept.entry.session_id), reverse=True)
        rest = [k for k in mine if after is None or not after.passed(k.entry.score_ms, k.entry.session_id)]
        sessions = [self._summary(kept) for kept in rest[:limit]]
        last = rest[limit - 1].entry if len(rest) > limit else None
        return Page(sessions, Cursor(last.score_ms, last.session_id) if last else None)

    async def delete(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete`."""
        self._sweep()
        if self._kept.pop((tenant, session_id), None) is None:
            return False
        self._deleted_ms[tenant, session_id] = time.time_ns() // 1_000_000
        return True

    async def deleted_ms(self, tenant: str, session_id: str) -> int | None:
        """See `SessionStore.deleted_ms`."""
        return self._deleted_ms.get((tenant, session_id))

    async def fates(self, places: Sequence[tuple[str, str]]) -> list[Fate]:
        """See `SessionStore.fates`."""
        return [Fate(self._alive(*place) is not None, place in self._deleted_ms) for place in places]

    async def describe(self, tenant: str, session_id: str) -> SessionSummary | None:
        """See `SessionStore.describe`."""
        kept = self._alive(tenant, session_id)
        return self._summary(kept) if kept else None

    async def pin(self, tenant: str, session_id: str, group: str) -> bool:
        """See `SessionStore.pin`."""
        kept = self._alive(tenant, session_id)
        if kept:
            self._kept[tenant, session_id] = changed(kept, group=group)
        return kept is not None

    async def pins(self, limit: int, after: str) -> Pins:
        """See `SessionStore.pins`."""
        self._sweep()
        pinned = {keys.member(*place): kept.group for place, kept in self._kept.items() if kept.group}
        rest = sorted(member for member in pinned if member > after)
        found = []
        for member in rest[:limit]:
            tenant, session_id = keys.split_member(member)
            found.append(Pinned(tenant=tenant, session_id=session_id, group=pinned[member]))
        return Pins(found, rest[limit - 1] if len(rest) > limit else "")

    async def can_write(self) -> bool:
        """See `SessionStore.can_write`; there is no disk."""
        return True

    async def count(self) -> int:
        """See `SessionStore.count`."""
        self._sweep()
        return len(self._kept)

    async def close(self) -> None:
        """See `SessionStore.close`."""

    def _summary(self, kept: _Kept) -> SessionSummary:
        summary = decode(kept.entry.summary, SessionSummary)
        return replace(summary, ttl_s=int(kept.expires_at - self._clock()), pinned_group=kept.group)

    def _alive(self, tenant: str, session_id: str) -> _Kept | None:
        kept = self._kept.get((tenant, session_id))
        return kept if kept and kept.expires_at > self._clock() else None

    def _sweep(self) -> None:
        now = self._clock()
        for key in [key for key, kept in self._kept.items() if kept.expires_at <= now]:
            del self._kept[key]
