"""The session store on Redis: a hash for each session, a sorted set for each tenant, writes by script.

The merge rule and the names are the domain's; `redis/link.py` has connections, time limits and the circuit.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import structlog
from msgspec.structs import replace

from services.kvstate.domain import keys
from services.kvstate.domain.session_merge import PageCursor, SessionEntry, Verdict
from services.kvstate.domain.session_quota import (
    DAY_MS,
    DaysOf,
    LimitsOf,
    SessionLives,
    SessionQuotas,
    no_own_days,
    no_own_limits,
)
from services.kvstate.redis.link import RedisLink, ScriptCall
from services.kvstate.redis.store_errors import StoreUnwritable
from services.kvstate.retention import PAGE
from services.kvstate.sessions import scripts
from services.kvstate.sessions.store import (
    MAX_TENANTS,
    PinOutcome,
    PutOutcome,
    SessionFate,
    SessionTally,
    StoredPins,
    SummaryPage,
)
from shared.codec import decode
from shared.errors import Internal, InvalidRequest
from shared.messages import Pinned, SessionSummary
from shared.telemetry.histograms import TokenHistogram

_VERDICTS = {0: Verdict.STALE, 1: Verdict.STORE, 2: Verdict.DELETED, 3: Verdict.OVER_QUOTA}
_PINNED = {0: PinOutcome.NO_SESSION, 1: PinOutcome.DONE, 2: PinOutcome.TENANT_FULL, 3: PinOutcome.ALL_FULL}
_NO_QUOTAS = SessionQuotas()
_SCAN = 1000  # index entries that are read at a time where spare sessions are passed over
log = structlog.get_logger(__name__)


class RedisSessionStore:
    """Implements `SessionStore`.

    Args:
        lives: How long records live.
        tombstone_s: How long deletions are remembered.
        quotas: Of tenants without limits of their own.
        limits_of: Of tenants that have some.
        days_of: How long sessions of a tenant live.

    Attributes:
        last: The last `tally`.
        writable: Whether its disk took the last write, or was found well since.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        lives: SessionLives,
        tombstone_s: float,
        quotas: SessionQuotas = _NO_QUOTAS,
        limits_of: LimitsOf = no_own_limits,
        days_of: DaysOf = no_own_days,
    ) -> None:
        self.last = SessionTally()
        self.writable = True
        self._link = link
        self._lives, self._spare_ttl_ms = lives, int(lives.session_spare_ttl_s * 1000)
        self._tombstone_ms = int(tombstone_s * 1000)
        self._quotas = quotas
        self._limits_of, self._days_of = limits_of, days_of
        self._max_bytes = quotas.bytes_for(0)  # of a tenant, by the last `tally`

    @property
    def is_away(self) -> bool:
        """True while the circuit of the link is open."""
        return self._link.is_away

    async def get_record(self, tenant: str, session_id: str) -> bytes | None:
        """See `SessionStore.get_record`."""
        (record,) = await self._link.pipeline([("HGET", keys.session(tenant, session_id), "r")])
        return bytes(record) if record is not None else None

    async def put_records(self, entries: Sequence[SessionEntry]) -> PutOutcome:
        """See `SessionStore.put_records`."""
        calls: list[ScriptCall] = []
        for (ttl_ms, max_sessions), few in self._by_rules(entries):
            values: list[Any] = [ttl_ms, max_sessions, self._max_bytes]
            values += (self._tombstone_ms // 2, self._spare_ttl_ms)
            for entry in few:
                values += (entry.tenant, entry.session_id, entry.version, entry.record, entry.summary)
                values += (entry.score_ms, entry.created_ms, entry.updated_ms, int(entry.spare))
                values += (entry.last_request, f" {' '.join(entry.lineage)} ")
            calls.append(((), values))
        answers = await self._write(scripts.PUT, calls) if calls else []
        verdicts = [_VERDICTS[verdict] for answer in answers for verdict in answer[1:]]
        return PutOutcome(verdicts, sum(answer[0] for answer in answers))

    def _by_rules(
        self, entries: Sequence[SessionEntry]
    ) -> Iterator[tuple[tuple[int, int], Sequence[SessionEntry]]]:
        """Parts of the entries in their order: as many as a call takes, of tenants with the same rules.

        The rules are how long sessions live, in milliseconds, and how many there may be.
        """
        begins, rules = 0, (0, 0)
        for at, entry in enumerate(entries):
            own = self._limits_of(entry.tenant)
            most = (own.sessions if own is not None else 0) or self._quotas.session_max_per_tenant
            its = (self._lives.ttl_ms(self._days_of(entry.tenant)), most)
            if at > begins and (its != rules or at - begins == scripts.MAX_ITEMS):
                yield rules, entries[begins:at]
                begins = at
            rules = its
        if entries:
            yield rules, entries[begins:]

    async def list_page(
        self, tenant: str, limit: int, after: PageCursor | None, *, spare: bool = True
    ) -> SummaryPage:
        """See `SessionStore.list_page`."""
        index, top = keys.session_index(tenant), after.score_ms if after else "+inf"
        found: list[tuple[PageCursor, SessionSummary]] = []
        offset, step = 0, limit + 1
        while len(found) <= limit:
            args = ("ZREVRANGEBYSCORE", index, top, "-inf", "WITHSCORES", "LIMIT", offset, step)
            (flat,) = await self._link.pipeline([args])
            cursors = [PageCursor(int(float(score)), name.decode()) for name, score in _pairs(flat)]
            rest = [
                cursor
                for cursor in cursors
                if not (after and after.passed(cursor.score_ms, cursor.session_id))
            ]
            asked = rest if spare else await self._without_spare(tenant, rest)
            alive = await self._read(tenant, asked)
            found += alive
            offset += step - (len(asked) - len(alive))  # expired ones have left the index
            if len(cursors) < step:
                break
            if not spare:
                step = _SCAN  # a tenant may have 100,000 spare sessions before the next other one
        last = found[limit - 1][0] if len(found) > limit else None
        return SummaryPage([summary for _, summary in found[:limit]], last)

    async def _without_spare(self, tenant: str, cursors: list[PageCursor]) -> list[PageCursor]:
        if not cursors:
            return []
        index = keys.spare_index(tenant)
        scores = await self._link.pipeline([("ZSCORE", index, cursor.session_id) for cursor in cursors])
        return [cursor for cursor, score in zip(cursors, scores, strict=True) if score is None]

    async def deleted_ms(self, tenant: str, session_id: str) -> int | None:
        """See `SessionStore.deleted_ms`."""
        (value,) = await self._link.pipeline([("GET", keys.gone(tenant, session_id))])
        return int(value) if value is not None else None

    async def fates(self, sessions: Sequence[tuple[str, str]]) -> list[SessionFate]:
        """See `SessionStore.fates`."""
        names = [name for key in sessions for name in (keys.session(*key), keys.gone(*key))]
        there = await self._link.pipeline([("EXISTS", name) for name in names]) if names else []
        return [SessionFate(bool(record), bool(gone)) for record, gone in _pairs(there)]

    async def describe_session(self, tenant: str, session_id: str) -> SessionSummary | None:
        """See `SessionStore.describe_session`."""
        found = await self._read(tenant, [PageCursor(0, session_id)])
        return found[0][1] if found else None

    async def pin_session(self, tenant: str, session_id: str, group: str) -> PinOutcome:
        """See `SessionStore.pin_session`."""
        pins = (self._quotas.session_pins_per_tenant, self._quotas.router_pins_max)
        values = [tenant, session_id, group, *pins, self._lives.ttl_ms(self._days_of(tenant))]
        (done,) = await self._write(scripts.PIN, [((), values)])
        return _PINNED[done]

    async def list_pins(self, limit: int, after: str) -> StoredPins:
        """See `SessionStore.list_pins`."""
        start = f"({after}" if after else "-"
        (rows,) = await self._link.run_script(
            scripts.PINNED, [([keys.PINS], [start, limit + 1, keys.SESSION_PREFIX])]
        )
        members = [member.decode() for member, _ in rows]
        found = []
        for member, (_, group) in zip(members[:limit], rows, strict=False):
            tenant, session_id = keys.split_member(member)
            if group:
                found.append(Pinned(tenant=tenant, session_id=session_id, group=group.decode()))
        return StoredPins(found, members[limit - 1] if len(members) > limit else "")

    async def delete_session(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete_session`."""
        values = [tenant, session_id, self._tombstone_ms, self._quotas.tombstones]
        (done,) = await self._write(scripts.DELETE, [((), values)])
        return bool(done)

    async def shorten(self, tenant: str, days: int) -> int:
        """Lets a tenant's sessions live no longer than that after their last turns; returns how many went."""
        at = gone = 0
        while at >= 0:
            values = [tenant, days * DAY_MS, at, PAGE]
            ((at, dropped),) = await self._write(scripts.SHORTEN, [((), values)])
            gone += dropped
        return gone

    async def can_write(self) -> bool:
        """See `SessionStore.can_write`; asks also while the circuit is open."""
        (info,) = await self._link.pipeline([("INFO", "persistence")], probe=True)
        states = (info.get(name, "ok") for name in ("aof_last_write_status", "rdb_last_bgsave_status"))
        self.writable = all(state == "ok" for state in states)
        return self.writable

    @property
    def exchanges(self) -> TokenHistogram:
        """Seconds that Redis took to answer."""
        return self._link.exchanges

    async def tally(self) -> SessionTally:
        """See `SessionStore.tally`; asks also while the circuit is open."""
        tenants, memory = await self._link.pipeline(
            [("SRANDMEMBER", keys.TENANTS, MAX_TENANTS), ("INFO", "memory")], probe=True
        )
        self._max_bytes = self._quotas.bytes_for(int(memory.get("maxmemory", 0)), len(tenants))
        step = scripts.MAX_ITEMS
        calls: list[ScriptCall] = [
            ((), tenants[first : first + step]) for first in range(0, len(tenants), step)
        ]
        answers = await self._link.run_script(scripts.TALLY, calls, probe=True) if calls else []
        rows = [row for answer in answers for row in answer]
        self.last = SessionTally(
            sessions=sum(sessions for sessions, _ in rows),
            num_bytes=sum(num_bytes for _, num_bytes in rows),
            tenants=len(rows),
            nearly_full=sum(self._quotas.nearly_full(row[0], row[1], self._max_bytes) for row in rows),
            used_memory=int(memory.get("used_memory", 0)),
            maxmemory=int(memory.get("maxmemory", 0)),
        )
        return self.last

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._link.close()

    async def _write(self, script: str, calls: Sequence[ScriptCall]) -> list[Any]:
        try:
            return await self._link.run_script(script, calls)
        except StoreUnwritable as error:
            if self.writable:
                log.error("nothing is stored", error=error.message)
            self.writable = False
            raise

    async def _read(self, tenant: str, cursors: list[PageCursor]) -> list[tuple[PageCursor, SessionSummary]]:
        """Returns the summaries at these indices, without expired ones."""
        index, calls = keys.session_index(tenant), list[ScriptCall]()
        for first in range(0, len(cursors), scripts.MAX_ITEMS):
            ids = [cursor.session_id for cursor in cursors[first : first + scripts.MAX_ITEMS]]
            calls.append(([index, *(keys.session(tenant, name) for name in ids)], ids))
        answers = await self._link.run_script(scripts.READ, calls) if calls else []
        rows = [row for answer in answers for row in answer]
        return [
            (cursor, _summary(raw, cursor, max(0, int(left_ms)) // 1000, group.decode()))
            for cursor, (raw, left_ms, group) in zip(cursors, rows, strict=True)
            if raw
        ]


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Turns a flat list of Redis into pairs; RESP3 returns scores as pairs already."""
    if flat and isinstance(flat[0], list | tuple):
        return [(first, second) for first, second in flat]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _summary(raw: bytes, cursor: PageCursor, ttl_s: int, group: str) -> SessionSummary:
    try:
        return replace(decode(raw, SessionSummary), ttl_s=ttl_s, pinned_group=group)
    except InvalidRequest as error:
        raise Internal(f"the stored summary of session {cursor.session_id!r} cannot be read") from error
