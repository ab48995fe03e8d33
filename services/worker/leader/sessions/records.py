"""Session records on this side: looked up in the KV state service, committed after each turn.

A bounded cache keeps the latest turns, so that a turn that comes before the last one is written still sees
it. Trouble with the store fails a request only if the request cannot be understood without the record.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from services.worker.domain.generation.session_cache import SessionCache
from services.worker.domain.generation.session_merge import follows, rebase
from services.worker.domain.generation.sized_entries import Key
from services.worker.leader.sessions.commits import (
    CommitOutcome,
    CommitWaiter,
    PendingRecord,
    RecordStore,
    read_record,
)
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.leader.sessions.record_writer import MAX_REBASES, RecordWriter
from services.worker.leader.sessions.turn_announcer import TurnAnnouncer
from services.worker.metrics import WorkerMetrics
from shared.errors import RyzError, SessionNotFound, Unavailable
from shared.messages import SessionRecord

Peers = Callable[[str, str, str], Awaitable[SessionRecord]]  # group, tenant, session id


class SessionRecords:
    """Look up before a turn, commit after it.

    Args:
        max_payload: Returns the largest message that the bus takes, in bytes.
        peers: Asks another group's leader for a record; raises `RyzError` if it does not have it.
        announcer: Announces turns to routers as they end.
    """

    def __init__(
        self,
        store: RecordStore,
        limits: SessionRecordLimits,
        metrics: WorkerMetrics,
        max_payload: Callable[[], int],
        peers: Peers | None = None,
        *,
        announcer: TurnAnnouncer | None = None,
    ) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._peers = peers
        self._announcer = announcer
        self._cache = SessionCache(limits.session_cache_bytes)
        self.writer = RecordWriter(store, self._cache, limits, metrics, max_payload)

    @property
    def num_cached(self) -> int:
        """Records in the cache."""
        return len(self._cache)

    @property
    def history_wait_s(self) -> float:
        """See `SessionRecordLimits.history_wait_s`."""
        return self._limits.history_wait_s

    def newest_first(self) -> list[SessionRecord]:
        """Returns the records in the cache, tenants in rotation; of each the one used last comes first."""
        return self._cache.newest_first()

    def newest(self, tenant: str, session_id: str) -> SessionRecord | None:
        """Returns the newest record that this leader has; one that waits to be stored is always kept."""
        return self._newest((tenant, session_id))

    def vouched(self, tenant: str, session_id: str) -> SessionRecord | None:
        """Returns the newest record, unless it is so old that the session may have been deleted.

        A `SessionGone` can be lost, and the store remembers deletions for a limited time.
        """
        key = (tenant, session_id)
        waiting = self.writer.waiting(key)
        since = waiting.since if waiting is not None else self._cache.seen_at(key)
        return self._newest(key) if time.monotonic() - since <= self._limits.copy_s else None

    def forget(self, tenant: str, session_id: str) -> None:
        """Forgets a session that was deleted; the store refuses a turn of it that is in flight."""
        key = (tenant, session_id)
        self._cache.pop(key)
        self.writer.discard_deleted(key)

    async def lookup(self, tenant: str, session_id: str, last_group: str = "") -> SessionRecord | None:
        """Returns the newest record of this leader, the store, and the group that had the last turn.

        The store may lag behind the others, or have lost the session.

        Args:
            last_group: Had the last turn, as far as the router knew; empty if that was this group.

        Returns:
            The record; None if the session does not exist.

        Raises:
            Unavailable: Neither the store nor the group that had the last turn answers.
        """
        key = (tenant, session_id)
        (stored, problem), from_peer = await asyncio.gather(
            read_record(self._store, key, self._limits.lookup_timeout_s), self._ask_peer(key, last_group)
        )
        if isinstance(problem, SessionNotFound) and problem.data.get("deleted"):
            deleted_ms = problem.data.get("deleted_ms")
            self._forget_until(key, deleted_ms)
            if from_peer is not None and (deleted_ms is None or from_peer.created_ms <= deleted_ms):
                from_peer = None  # the peer missed the deletion, and must not bring the session back
        if stored is not None:
            cached = self._cache.use(key)
            if cached is not None and cached.created_ms != stored.created_ms:
                self._cache.pop(key)  # deleted and begun anew elsewhere
            elif cached is not None:
                self._cache.see(key, time.monotonic())
        elsewhere = _newer(stored, from_peer)
        newest = _newer(elsewhere, self._newest(key) if stored is not None else self.vouched(*key))
        away = problem is not None and not isinstance(problem, SessionNotFound)
        unsure = away and (newest is None or (last_group != "" and from_peer is None))
        unsure = unsure or (newest is None and self.writer.waiting(key) is not None)
        outcome = "unavailable" if unsure else "cached" if away else "unknown" if problem else "found"
        self._metrics.session_lookups.labels(outcome).inc()
        if unsure:
            raise Unavailable(
                f"the session store does not answer, so the history of session {session_id} is not known "
                "now; try again, or send the whole conversation",
                reason="session_store",
                retry_after_s=1,
            ) from problem
        if newest is None:
            self._cache.pop(key)
        elif newest is elsewhere:
            self._cache.put(key, newest, time.monotonic())  # later lookups get at least this
        return newest

    def commit(
        self, record: SessionRecord, *, joins: bool = True, hurry: bool = True
    ) -> asyncio.Future[CommitOutcome]:
        """Queues a record to be stored; it is known here at once.

        Of turns that go on from the same history, the one that ends first comes first, as in the store. A
        later one is put after it, so that it does not undo the turns that were built on the other.

        Args:
            record: The session after the turn.
            joins: False if the turn must not be put after turns that it was made without; then it is `stale`.
            hurry: A turn waits for the outcome; else the record is written with others soon.

        Returns:
            The outcome, once the store has answered.
        """
        key = (record.tenant, record.session_id)
        future: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()
        mine = PendingRecord(record, [CommitWaiter(future)], rebases=0 if joins else MAX_REBASES)
        newest = self._newest(key)
        if newest is not None and not follows(record, newest):
            joined = rebase(record, newest) if joins and record.recent else None
            if joined is None or joined is newest:
                self.writer.settle(mine, "stale" if joined is None else "stored")
                return future
            mine.rebase_to(joined)
        self._cache.put(key, mine.record, time.monotonic())
        queued = self.writer.queue_record(key, mine, hurry=hurry)
        if self._announcer is not None:
            self._announcer.announce_soon(queued.record)
        return future

    def _forget_until(self, key: Key, deleted_ms: int | None) -> None:
        """Forgets a session that was begun before that time, in milliseconds; None means at any time."""
        newest = self._newest(key)
        if newest is not None and (deleted_ms is None or newest.created_ms <= deleted_ms):
            self.forget(*key)

    async def _ask_peer(self, key: Key, group: str) -> SessionRecord | None:
        if not group or self._peers is None:
            return None
        try:
            record = await self._peers(group, *key)
        except RyzError:
            return None
        self._metrics.session_lookups.labels("peer").inc()
        return record

    def _newest(self, key: Key) -> SessionRecord | None:
        waiting = self.writer.waiting(key)
        return _newer(waiting.record if waiting is not None else None, self._cache.use(key))


def _newer(first: SessionRecord | None, second: SessionRecord | None) -> SessionRecord | None:
    """Returns the later turn of both; of two sessions that had the same id, the first."""
    if first is None or second is None:
        return first or second
    later = second.created_ms == first.created_ms and second.version > first.version
    return second if later else first
