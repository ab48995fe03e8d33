"""A session store in this process's memory: for tests, and the plain reading of what the Redis scripts do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from services.kvstate.domain.records import Cursor, Entry, Verdict, judge
from services.kvstate.store import Page
from shared.codec import decode
from shared.messages import SessionSummary


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: Entry
    expires_at: float


class MemoryStore:
    """Implements `SessionStore`. `clock` gives seconds; records live for `ttl_s` of them."""

    def __init__(self, *, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}

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
            )
            if verdict is Verdict.STORE:
                self._kept[entry.tenant, entry.session_id] = _Kept(entry, self._clock() + self._ttl_s)
            verdicts.append(verdict is not Verdict.STALE)
        return verdicts

    async def page(self, tenant: str, limit: int, after: Cursor | None) -> Page:
        """See `SessionStore.page`."""
        self._sweep()
        mine = [kept for (owner, _), kept in self._kept.items() if owner == tenant]
        mine.sort(key=lambda kept: (kept.entry.score_ms, kept.entry.session_id), reverse=True)
        rest = [k for k in mine if after is None or not after.passed(k.entry.score_ms, k.entry.session_id)]
        sessions = [
            replace(decode(kept.entry.summary, SessionSummary), ttl_s=int(kept.expires_at - self._clock()))
            for kept in rest[:limit]
        ]
        last = rest[limit - 1].entry if len(rest) > limit else None
        return Page(sessions, Cursor(last.score_ms, last.session_id) if last else None)

    async def delete(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete`."""
        self._sweep()
        return self._kept.pop((tenant, session_id), None) is not None

    async def count(self) -> int:
        """See `SessionStore.count`."""
        self._sweep()
        return len(self._kept)

    async def close(self) -> None:
        """See `SessionStore.close`."""

    def _alive(self, tenant: str, session_id: str) -> _Kept | None:
        kept = self._kept.get((tenant, session_id))
        return kept if kept and kept.expires_at > self._clock() else None

    def _sweep(self) -> None:
        now = self._clock()
        for key in [key for key, kept in self._kept.items() if kept.expires_at <= now]:
            del self._kept[key]
