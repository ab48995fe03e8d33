"""A session store in memory: the plain form of what the Lua scripts do."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from services.kvstate.domain import keys
from services.kvstate.domain.session_merge import PageCursor, SessionEntry, StoredSession, Verdict, judge
from services.kvstate.domain.session_quota import SessionLives, SessionQuotas, size_of
from services.kvstate.sessions.store import (
    PinOutcome,
    PutOutcome,
    SessionFate,
    SessionTally,
    StoredPins,
    SummaryPage,
)
from shared.codec import decode
from shared.messages import Pinned, SessionSummary

_NO_QUOTAS = SessionQuotas()


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """The sessions of a tenant, and their bytes."""

    sessions: int = 0
    num_bytes: int = 0

    def missing(self, before: int, size: int, max_sessions: int, max_bytes: int) -> tuple[int, int]:
        """Returns how many sessions and bytes must be dropped before a record fits; (0, 0) if it fits.

        A record that is no larger than the one it replaces always fits.

        Args:
            before: Size of the stored record; 0 if there is none.
            size: Size of the new one.
        """
        sessions = 0 if before else max(0, self.sessions + 1 - max_sessions)
        num_bytes = 0 if size <= before else max(0, self.num_bytes + size - before - max_bytes)
        return sessions, num_bytes


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: SessionEntry
    expires_at: float
    group: str = ""  # that it is pinned to

    @property
    def size(self) -> int:
        return size_of(self.entry)

    @property
    def spare(self) -> bool:
        return self.entry.spare and not self.group


class MemorySessionStore:
    """Implements `SessionStore`.

    Args:
        lives: How long records live.
        clock: Returns seconds.
        tombstone_s: How long deletions are remembered.
        quotas: Limits of tenants.
    """

    def __init__(
        self,
        *,
        lives: SessionLives,
        clock: Callable[[], float],
        tombstone_s: float,
        quotas: SessionQuotas = _NO_QUOTAS,
    ) -> None:
        self._lives = lives
        self._tombstone_ms = int(tombstone_s * 1000)
        self._quotas = quotas
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}  # in the order of puts
        self._deleted_ms: dict[tuple[str, str], int] = {}
        self._floor_ms: dict[str, int] = {}

    async def get_record(self, tenant: str, session_id: str) -> bytes | None:
        """See `SessionStore.get_record`."""
        kept = self._alive(tenant, session_id)
        return kept.entry.record if kept else None

    async def put_records(self, entries: Sequence[SessionEntry]) -> PutOutcome:
        """See `SessionStore.put_records`."""
        self._sweep()
        verdicts, dropped = [], 0
        for entry in entries:
            key = entry.tenant, entry.session_id
            verdict = judge(self._stored(*key), entry, _now_ms() - self._tombstone_ms // 2)
            if verdict is Verdict.STORE:
                going = self._to_remove(entry)
                for one in going or ():
                    del self._kept[entry.tenant, one]
                dropped += len(going or ())
                if going is None:
                    verdict = Verdict.OVER_QUOTA
                else:
                    before = self._kept.pop(key, None)
                    group = before.group if before else ""
                    life_s = self._lives.session_ttl_s
                    if entry.spare and not group:
                        life_s = min(life_s, self._lives.session_spare_ttl_s)
                    self._kept[key] = _Kept(entry, self._clock() + life_s, group)
            verdicts.append(verdict)
        return PutOutcome(verdicts, dropped)

    async def list_page(
        self, tenant: str, limit: int, after: PageCursor | None, *, spare: bool = True
    ) -> SummaryPage:
        """See `SessionStore.list_page`."""
        self._sweep()
        mine = [kept for (owner, _), kept in self._kept.items() if owner == tenant]
        mine = [kept for kept in mine if spare or not kept.spare]
        mine.sort(key=lambda kept: (kept.entry.score_ms, kept.entry.session_id), reverse=True)
        rest = [k for k in mine if after is None or not after.passed(k.entry.score_ms, k.entry.session_id)]
        sessions = [self._summary(kept) for kept in rest[:limit]]
        last = rest[limit - 1].entry if len(rest) > limit else None
        return SummaryPage(sessions, PageCursor(last.score_ms, last.session_id) if last else None)

    async def delete_session(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete_session`."""
        self._sweep()
        if self._kept.pop((tenant, session_id), None) is None:
            return False
        self._deleted_ms.pop((tenant, session_id), None)
        self._deleted_ms[tenant, session_id] = _now_ms()
        mine = [key for key in self._deleted_ms if key[0] == tenant]
        for key in mine[: max(0, len(mine) - self._quotas.tombstones)]:
            self._floor_ms[tenant] = self._deleted_ms.pop(key)
        return True

    async def deleted_ms(self, tenant: str, session_id: str) -> int | None:
        """See `SessionStore.deleted_ms`."""
        alive = self._alive(tenant, session_id)
        return None if alive else self._deleted_ms.get((tenant, session_id))

    async def fates(self, keys: Sequence[tuple[str, str]]) -> list[SessionFate]:
        """See `SessionStore.fates`."""
        there = [self._alive(*key) is not None for key in keys]
        return [
            SessionFate(alive, not alive and key in self._deleted_ms)
            for key, alive in zip(keys, there, strict=True)
        ]

    async def describe_session(self, tenant: str, session_id: str) -> SessionSummary | None:
        """See `SessionStore.describe_session`."""
        kept = self._alive(tenant, session_id)
        return self._summary(kept) if kept else None

    async def pin_session(self, tenant: str, session_id: str, group: str) -> PinOutcome:
        """See `SessionStore.pin_session`."""
        kept = self._alive(tenant, session_id)
        if kept is None:
            return PinOutcome.NO_SESSION
        if group and not kept.group:
            self._sweep()
            pinned = [owner for (owner, _), one in self._kept.items() if one.group]
            if pinned.count(tenant) >= self._quotas.session_pins_per_tenant:
                return PinOutcome.TENANT_FULL
            if len(pinned) >= self._quotas.router_pins_max:
                return PinOutcome.ALL_FULL
        if group and kept.spare:
            kept = changed(kept, expires_at=self._clock() + self._lives.session_ttl_s)
        self._kept[tenant, session_id] = changed(kept, group=group)
        return PinOutcome.DONE

    async def list_pins(self, limit: int, after: str) -> StoredPins:
        """See `SessionStore.list_pins`."""
        self._sweep()
        pinned = {keys.member(*key): kept.group for key, kept in self._kept.items() if kept.group}
        rest = sorted(member for member in pinned if member > after)
        found = []
        for member in rest[:limit]:
            tenant, session_id = keys.split_member(member)
            found.append(Pinned(tenant=tenant, session_id=session_id, group=pinned[member]))
        return StoredPins(found, rest[limit - 1] if len(rest) > limit else "")

    async def can_write(self) -> bool:
        """See `SessionStore.can_write`; there is no disk."""
        return True

    async def tally(self) -> SessionTally:
        """See `SessionStore.tally`."""
        self._sweep()
        used = {owner: self._usage(owner) for owner, _ in self._kept}
        quotas, max_bytes = self._quotas, self._quotas.bytes_for(0)
        full = sum(quotas.nearly_full(one.sessions, one.num_bytes, max_bytes) for one in used.values())
        size = sum(one.num_bytes for one in used.values())
        return SessionTally(len(self._kept), size, len(used), full)

    async def close(self) -> None:
        """See `SessionStore.close`."""

    def _stored(self, tenant: str, session_id: str) -> StoredSession:
        kept = self._alive(tenant, session_id)
        deleted_ms = self._deleted_ms.get((tenant, session_id), -1)
        if kept is None:
            return StoredSession(deleted_ms=max(deleted_ms, self._floor_ms.get(tenant, -1)))
        entry = kept.entry
        return StoredSession(entry.version, entry.record, entry.last_request, deleted_ms)

    def _usage(self, tenant: str) -> TenantUsage:
        sizes = [kept.size for (owner, _), kept in self._kept.items() if owner == tenant]
        return TenantUsage(len(sizes), sum(sizes))

    def _to_remove(self, entry: SessionEntry) -> list[str] | None:
        """Returns the spare sessions to drop for the entry, or None if dropping all of them is not enough."""
        kept = self._kept.get((entry.tenant, entry.session_id))
        before, size = kept.size if kept else 0, size_of(entry)
        max_bytes = self._quotas.bytes_for(0)
        sessions, num_bytes = self._usage(entry.tenant).missing(
            before, size, self._quotas.session_max_per_tenant, max_bytes
        )
        going = []
        for (owner, session_id), one in self._kept.items():
            if sessions <= 0 and num_bytes <= 0:
                break
            if owner == entry.tenant and one.spare and session_id != entry.session_id:
                going.append(session_id)
                sessions, num_bytes = sessions - 1, num_bytes - one.size
        return going if sessions <= 0 and num_bytes <= 0 else None

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
