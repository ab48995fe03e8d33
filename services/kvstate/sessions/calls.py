"""The calls of leaders, routers and gateways about sessions.

Summaries contain the KV that the tier holds of a session. While the KV store is away they say 0, since calls
about sessions must not depend on it.
"""

import time
from dataclasses import dataclass

import structlog
from msgspec import Raw
from msgspec.structs import replace

from services.kvstate.blocks.store import BlockUsage
from services.kvstate.blocks.tier import BlockTier
from services.kvstate.call_server import CallKind
from services.kvstate.domain.session_merge import SessionEntry, Verdict, make_cursor, make_entry, read_cursor
from services.kvstate.domain.session_quota import DaysOf, SessionLives, no_own_days
from services.kvstate.metrics import KVStateMetrics
from services.kvstate.redis.store_errors import StoreFull
from services.kvstate.sessions.store import PinOutcome, PutOutcome, SessionStore
from shared import subjects
from shared.bus import Bus
from shared.codec import encode
from shared.errors import Overloaded, RateLimited, RyzError, SessionNotFound, Unavailable
from shared.messages import (
    PinList,
    Pinned,
    PinPage,
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionDescribe,
    SessionDescribed,
    SessionGet,
    SessionGone,
    SessionList,
    SessionPage,
    SessionPin,
    SessionSummary,
    Wire,
)
from shared.messages.kv.blocks import MAX_NAMES
from shared.messages.sessions import MAX_SESSION_MESSAGES

_NAMED, _QUIET_S = 8, 10.0  # tenants in a log line about quotas, and seconds between two such lines
_QUOTA_REMEDY = "delete sessions, or raise RYZ_SESSION_MAX_PER_TENANT and RYZ_SESSION_BYTES_PER_TENANT"
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Limits of records.

    Attributes:
        max_record_bytes: Size of the largest record.
        lives: How long records live.
        days_of: How long those of a tenant live.
    """

    max_record_bytes: int
    lives: SessionLives
    days_of: DaysOf = no_own_days


class FoundRecord(Wire, frozen=True, kw_only=True):
    """A `SessionFound` whose record is encoded already and need not be decoded to be sent."""

    record: Raw


class SessionCalls:
    """Answers the calls, and publishes pins and deletions to routers and leaders."""

    def __init__(
        self, bus: Bus, store: SessionStore, tier: BlockTier, metrics: KVStateMetrics, limits: RecordLimits
    ) -> None:
        self._bus = bus
        self._store = store
        self._tier = tier
        self._metrics = metrics
        self._limits = limits
        self._quiet_until = 0.0

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the calls with their names, subjects and types."""
        return (
            CallKind("get", subjects.SESSION_GET, SessionGet, self._get),
            CallKind("commit", subjects.SESSION_COMMIT, SessionCommit, self._commit),
            CallKind("list", subjects.SESSION_LIST, SessionList, self._list),
            CallKind("delete", subjects.SESSION_DELETE, SessionDelete, self.delete),
            CallKind("describe", subjects.SESSION_DESCRIBE, SessionDescribe, self._describe),
            CallKind("pin", subjects.SESSION_PIN, SessionPin, self._pin),
            CallKind("pins", subjects.PINS, PinList, self._pins),
        )

    async def _get(self, query: SessionGet) -> FoundRecord:
        record = await self._store.get_record(query.tenant, query.session_id)
        if record is None:
            deleted_ms = await self._store.deleted_ms(query.tenant, query.session_id)
            raise _not_found(query.session_id, deleted_ms)
        return FoundRecord(record=Raw(record))

    async def _commit(self, commit: SessionCommit) -> SessionCommitted:
        now_ms, limits = time.time_ns() // 1_000_000, self._limits
        records = commit.records
        ttls = [limits.lives.ttl_ms(limits.days_of(record.tenant)) for record in records]
        entries = [make_entry(record, now_ms, ttl) for record, ttl in zip(records, ttls, strict=True)]
        limit, too_large, fitting = limits.max_record_bytes, list[int](), list[int]()
        for index, (record, entry) in enumerate(zip(records, entries, strict=True)):
            fits = len(entry.record) <= limit and len(record.messages) <= MAX_SESSION_MESSAGES
            (fitting if fits else too_large).append(index)
        done = await self._put([entries[index] for index in fitting]) if fitting else PutOutcome([])
        outcome = dict(zip(fitting, done.verdicts, strict=True))

        def indices_of(*verdicts: Verdict) -> list[int]:
            return [index for index in fitting if outcome[index] in verdicts]

        answer = SessionCommitted(
            stale=indices_of(Verdict.STALE, Verdict.DELETED),
            too_large=too_large,
            deleted=indices_of(Verdict.DELETED),
            over_quota=indices_of(Verdict.OVER_QUOTA),
        )
        self._metrics.committed(answer, len(entries), done.dropped)
        if too_large:
            log.warning("records over the limit were not stored", limit_bytes=limit,
                        limit_messages=MAX_SESSION_MESSAGES, count=len(too_large))  # fmt: skip
        if answer.over_quota and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_S
            tenants = sorted({entries[index].tenant for index in answer.over_quota})
            log.warning("tenants are at their quota: records were not stored", tenants=tenants[:_NAMED],
                        remedy=_QUOTA_REMEDY)  # fmt: skip
        return answer

    async def _put(self, entries: list[SessionEntry]) -> PutOutcome:
        """Stores records; for a full Redis KV blocks are evicted first (`BlockTier.make_room_for`)."""
        try:
            return await self._store.put_records(entries)
        except StoreFull:
            if not await self._tier.make_room_for(sorted({entry.tenant for entry in entries})):
                raise
            return await self._store.put_records(entries)

    async def _list(self, query: SessionList) -> SessionPage:
        after = read_cursor(query.cursor)
        page = await self._store.list_page(query.tenant, query.limit, after, spare=query.spare)
        cursor = make_cursor(page.last.score_ms, page.last.session_id) if page.last else ""
        return SessionPage(sessions=await self._with_kv(query.tenant, page.sessions), cursor=cursor)

    async def _describe(self, query: SessionDescribe) -> SessionDescribed:
        return await self._described(query.tenant, query.session_id)

    async def _pin(self, query: SessionPin) -> SessionDescribed:
        outcome = await self._store.pin_session(query.tenant, query.session_id, query.group)
        if outcome is PinOutcome.NO_SESSION:
            raise _not_found(query.session_id)
        if outcome is not PinOutcome.DONE:
            self._metrics.pins_refused.labels(outcome.value).inc()
            raise _too_many_pins(outcome)
        pinned = Pinned(tenant=query.tenant, session_id=query.session_id, group=query.group)
        await self._publish(subjects.SESSION_PINNED, pinned)
        return await self._described(query.tenant, query.session_id)

    async def _pins(self, query: PinList) -> PinPage:
        found = await self._store.list_pins(query.limit, query.cursor)
        return PinPage(pins=found.pins, cursor=found.last)

    async def delete(self, query: SessionDelete) -> SessionDeleted:
        """Deletes a session, releases its blocks, and lets routers and leaders know."""
        key = query.tenant, query.session_id
        if not await self._store.delete_session(*key):
            raise _not_found(query.session_id)
        try:
            names = await self._tier.release_session(*key)
        except Unavailable as error:  # the sweep releases the blocks of deleted sessions
            log.warning("KV of a deleted session goes later", error=error.message)
            names = []
        for first in range(0, max(1, len(names)), MAX_NAMES):
            packed = b"".join(names[first : first + MAX_NAMES])
            gone = SessionGone(tenant=query.tenant, session_id=query.session_id, names=packed)
            await self._publish(subjects.SESSION_GONE, gone)
        return SessionDeleted(session_id=query.session_id)

    async def _described(self, tenant: str, session_id: str) -> SessionDescribed:
        summary = await self._store.describe_session(tenant, session_id)
        if summary is None:
            raise _not_found(session_id)
        (session,) = await self._with_kv(tenant, [summary])
        return SessionDescribed(session=session)

    async def _with_kv(self, tenant: str, sessions: list[SessionSummary]) -> list[SessionSummary]:
        try:
            usage = await self._tier.usage_of(tenant, [session.session_id for session in sessions])
        except Unavailable as error:
            log.debug("sessions without what they hold", error=error.message)
            usage = [BlockUsage()] * len(sessions)
        return [
            replace(
                session, kv_bytes=held.num_bytes, kv_blocks=held.blocks, kv_byte_seconds=held.byte_seconds
            )
            for session, held in zip(sessions, usage, strict=True)
        ]

    async def _publish(self, subject: str, message: Wire) -> None:
        """Publishes a change that is done; if the broker is away, the change stands."""
        try:
            await self._bus.publish(subject, encode(message))
        except RyzError as error:
            log.warning("change not published", subject=subject, error=error.message)


def _too_many_pins(outcome: PinOutcome) -> RyzError:
    """The error for a pin that was refused by a quota."""
    if outcome is PinOutcome.TENANT_FULL:
        return RateLimited(
            "the tenant has as many pinned sessions as it may have: free one, delete one, or have "
            "RYZ_SESSION_PINS_PER_TENANT raised",
            reason="pin_quota",
        )
    return Overloaded(
        "there are as many pinned sessions as routers keep in mind: free one, or have RYZ_ROUTER_PINS_MAX "
        "raised for routers and the KV state service",
        reason="pins_full",
    )


def _not_found(session_id: str, deleted_ms: int | None = None) -> SessionNotFound:
    """The error for a missing session.

    Args:
        deleted_ms: When it was deleted. None: it expired, or the store lost it and leaders may still have it.
    """
    if deleted_ms is None:
        return SessionNotFound(f"no session {session_id!r}; it may have expired", session_id=session_id)
    return SessionNotFound(
        f"session {session_id!r} was deleted", session_id=session_id, deleted=True, deleted_ms=deleted_ms
    )
