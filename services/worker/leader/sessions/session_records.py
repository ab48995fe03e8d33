"""Session records on this side: looked up in the KV state service, written behind to it.

A bounded cache keeps the latest turns, so that a turn that comes before the last one is written still sees
it. Trouble with the store fails a request only if the request cannot be understood without the record. What
is kept here is shared out by tenant, and written by turns of tenants.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import structlog

from services.worker.domain.generation.session_cache import SessionCache, record_bytes
from services.worker.domain.generation.session_merge import follows, rebase
from services.worker.domain.generation.sized_entries import Key, SizedEntries
from services.worker.leader.sessions.session_commits import (
    CommitOutcome,
    CommitWaiter,
    PendingRecord,
    RecordStore,
)
from services.worker.metrics import WorkerMetrics
from shared.errors import (
    DISK_FULL,
    InvalidRequest,
    RequestTooLarge,
    RyzError,
    SessionNotFound,
    Unavailable,
)
from shared.messages import SessionRecord
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)
MAX_BATCH = 256
TELL_S = 0.01  # between two messages about turns that ended; each costs every router a wake-up
RETRY_S = (0.05, 2.0)  # first and longest pause after a failed commit
MAX_REBASES = 8  # of one record; each means that another group has stored a turn since


@dataclass(frozen=True, slots=True)
class SessionRecordLimits:
    """Bounds; times in seconds, sizes in bytes of text and tokens.

    copy_s: how long a session goes on from what is known here, when the store does not have it or is away.
    """

    lookup_timeout_s: float = 0.1
    commit_timeout_s: float = 2.0
    cache_bytes: int = 64 * 2**20
    max_pending: int = 4096
    pending_bytes: int = 64 * 2**20
    copy_s: float = 21_600.0


Peers = Callable[[str, str, str], Awaitable[SessionRecord]]  # group, tenant, session id


class SessionRecords:
    """Look up before a turn, commit after it. Run `run` as a task.

    peers: asks another group's leader; raises `RyzError` if it does not know. on_turns: told of turns
    as they end, in their order: news when a turn is stored at last would hide where the session went since.
    """

    def __init__(
        self,
        store: RecordStore,
        limits: SessionRecordLimits,
        metrics: WorkerMetrics,
        max_payload: Callable[[], int],
        peers: Peers | None = None,
    ) -> None:
        self.on_turns: Callable[[list[SessionRecord]], Awaitable[None]] | None = None
        self._peers = peers
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._max_payload = max_payload
        self._cache = SessionCache(limits.cache_bytes)
        self._pending: SizedEntries[PendingRecord] = SizedEntries(
            most=limits.max_pending, most_bytes=limits.pending_bytes
        )
        self._max_batch = MAX_BATCH
        self._in_flight: dict[Key, PendingRecord] = {}
        self._trouble = ""
        self._repeated = RepeatedLog(log)
        self._wake = asyncio.Event()
        self._untold: list[SessionRecord] = []
        self._telling: asyncio.Task[None] | None = None

    @property
    def num_cached(self) -> int:
        """Records in the cache."""
        return len(self._cache)

    @property
    def num_pending(self) -> int:
        """Records that are not acknowledged yet."""
        return len(self._pending) + len(self._in_flight)

    @property
    def store_trouble(self) -> str:
        """Why the last write of records failed, `store_away` or `disk_full`; empty: it did not."""
        return self._trouble

    @property
    def pending_s(self) -> float:
        """How long the record that waits for longest has waited to be stored."""
        since = [pending.since for pending in chain(self._pending.values(), self._in_flight.values())]
        return time.monotonic() - min(since) if since else 0.0

    def newest_first(self) -> list[SessionRecord]:
        """The records in the cache by turns of tenants; of each the one used last comes first."""
        return self._cache.newest_first()

    def newest(self, tenant: str, session_id: str) -> SessionRecord | None:
        """What this leader knows of a session; what waits to be stored is never forgotten."""
        return self._newest((tenant, session_id))

    def vouched(self, tenant: str, session_id: str) -> SessionRecord | None:
        """What this leader knows of a session, unless it is so old that the session may have been deleted.

        News of a deletion can be lost, and the store remembers deletions for a limited time.
        """
        key = (tenant, session_id)
        waiting = self._pending.get(key) or self._in_flight.get(key)
        since = waiting.since if waiting is not None else self._cache.seen_at(key)
        return self._newest(key) if time.monotonic() - since <= self._limits.copy_s else None

    def forget(self, tenant: str, session_id: str) -> None:
        """The session was deleted; a turn that is being stored is refused by the store."""
        key = (tenant, session_id)
        self._cache.pop(key)
        pending = self._pending.pop(key)
        if pending is not None:
            self._settle(pending, "deleted")

    async def lookup(self, tenant: str, session_id: str, last_group: str = "") -> SessionRecord | None:
        """The newest record that is known here, in the store, or to another group that had the last turn.

        The store may lag behind that one, or have lost the session. None: the session does not exist.

        Raises:
            Unavailable: the store does not answer, and neither does who had the last turn.
        """
        key = (tenant, session_id)
        (stored, problem), told = await asyncio.gather(self._ask_store(key), self._ask_peer(key, last_group))
        if isinstance(problem, SessionNotFound) and problem.data.get("deleted"):
            deleted_ms = problem.data.get("deleted_ms")
            self._forget_until(key, deleted_ms)
            if told is not None and (deleted_ms is None or told.created_ms <= deleted_ms):
                told = None  # it has not heard of it yet, and must not bring it back
        if stored is not None:
            cached = self._cache.use(key)
            if cached is not None and cached.created_ms != stored.created_ms:
                self._cache.pop(key)  # deleted and begun anew elsewhere: what was said before is gone
            elif cached is not None:
                self._cache.see(key, time.monotonic())
        elsewhere = _newer(stored, told)
        newest = _newer(elsewhere, self._newest(key) if stored is not None else self.vouched(*key))
        away = problem is not None and not isinstance(problem, SessionNotFound)
        unsure = away and (newest is None or (last_group != "" and told is None))
        unsure = unsure or (newest is None and (key in self._pending or key in self._in_flight))
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
            self._remember(key, newest)  # who comes here for it gets at least this
        return newest

    def commit(self, record: SessionRecord, *, joins: bool = True) -> asyncio.Future[CommitOutcome]:
        """Queues a record; the result says whether the store has taken it. It is known here at once.

        Of turns that go on from the same history the one that ends first comes first, as in the store; a late
        one must not undo those that were built on the other, so it goes after them.

        joins: false if it must not go after turns that it was made without; then it is `stale`.
        """
        key = (record.tenant, record.session_id)
        future: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()
        mine = PendingRecord(record, [CommitWaiter(future)], rebases=0 if joins else MAX_REBASES)
        newest = self._newest(key)
        if newest is not None and not follows(record, newest):
            joined = rebase(record, newest) if joins and record.recent else None
            if joined is None or joined is newest:
                self._settle(mine, "stale" if joined is None else "stored")
                return future
            mine.move(joined)
        self._remember(key, mine.record)
        pending = self._pending.get(key)
        if pending is not None:  # the older turn need not be written any more
            pending.record = mine.record
            pending.waiters += mine.waiters
            mine = pending
        self._pending.put(key, mine, record_bytes(mine.record))
        self._drop_surplus()
        self._wake.set()
        if self.on_turns is not None:
            self._untold.append(mine.record)
            if self._telling is None or self._telling.done():
                self._telling = asyncio.create_task(self._tell())
        return future

    async def run(self) -> None:
        """Writes what is pending, a batch after the last one was acknowledged, until cancelled."""
        pause = RETRY_S[0]
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                if await self._write_batch():
                    pause = RETRY_S[0]
                else:
                    await asyncio.sleep(pause)
                    pause = min(RETRY_S[1], pause * 2)

    async def flush(self, timeout_s: float) -> bool:
        """Writes everything, without pauses; used at the end, when `run` was cancelled. False: not all."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._pending:
                    if not await self._write_batch():
                        await asyncio.sleep(RETRY_S[0])
        except TimeoutError:
            return False
        return True

    def _forget_until(self, key: Key, deleted_ms: int | None) -> None:
        """Forgets what was begun before that time, in milliseconds; None: everything."""
        newest = self._newest(key)
        if newest is not None and (deleted_ms is None or newest.created_ms <= deleted_ms):
            self.forget(*key)

    async def _ask_store(self, key: Key) -> tuple[SessionRecord | None, RyzError | None]:
        """The record, or why there is none."""
        try:
            return await self._store.get(*key, timeout_s=self._limits.lookup_timeout_s), None
        except RyzError as error:
            return None, error

    async def _ask_peer(self, key: Key, group: str) -> SessionRecord | None:
        if not group or self._peers is None:
            return None
        try:
            record = await self._peers(group, *key)
        except RyzError:
            return None
        self._metrics.session_lookups.labels("peer").inc()
        return record

    async def _tell(self) -> None:
        assert self.on_turns is not None
        while self._untold:
            turns, self._untold = self._untold[:MAX_BATCH], self._untold[MAX_BATCH:]
            with suppress(Unavailable):  # the broker is away; the next turn tells
                await self.on_turns(turns)
            await asyncio.sleep(TELL_S)  # one after a quiet moment is told at once, many are told together

    async def _write_batch(self) -> bool:
        batch = self._pending.take(self._max_batch, self._max_payload() // 2)
        self._in_flight = batch
        try:
            answer = await self._store.commit(
                [pending.record for pending in batch.values()], timeout_s=self._limits.commit_timeout_s
            )
        except (Unavailable, asyncio.CancelledError) as error:
            full = isinstance(error, Unavailable) and error.data.get("reason") == DISK_FULL
            self._trouble = DISK_FULL if full else "store_away"
            self._put_back(batch)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        except RyzError as error:
            self._trouble = ""
            if len(batch) > 1 and isinstance(error, RequestTooLarge | InvalidRequest):
                self._max_batch = len(batch) // 2  # down to the record that is refused: it stands alone
                self._put_back(batch)
                return True
            self._max_batch = MAX_BATCH
            log.warning("session records refused", number=len(batch), error=error.message)
            outcome = "too_large" if isinstance(error, RequestTooLarge) else "refused"
            self._finish(batch, dict.fromkeys(range(len(batch)), outcome))
            return True
        self._trouble, self._max_batch = "", MAX_BATCH
        not_stored = dict.fromkeys(answer.stale, "stale") | dict.fromkeys(answer.deleted, "deleted")
        not_stored |= dict.fromkeys(answer.too_large, "too_large")
        not_stored |= dict.fromkeys(answer.over_quota, "session_quota")
        again = await self._rebase_stale(batch, not_stored)
        self._finish(batch, not_stored)
        if again:
            self._put_back(again)
        return True

    async def _rebase_stale(
        self, batch: dict[Key, PendingRecord], not_stored: dict[int, str]
    ) -> dict[Key, PendingRecord]:
        """Puts records that were made without a turn of another group after it.

        Returns what is to be written again, `rebased` in `not_stored`; what cannot be joined stays `stale`.
        """
        again: dict[Key, PendingRecord] = {}
        for place, (key, pending) in enumerate(tuple(batch.items())):
            if (
                not_stored.get(place) != "stale"
                or pending.rebases >= MAX_REBASES
                or not pending.record.recent
            ):
                continue
            theirs, problem = await self._ask_store(key)
            if isinstance(problem, SessionNotFound) and problem.data.get("deleted"):
                not_stored[place] = "deleted"
                continue
            joined = rebase(pending.record, theirs) if theirs is not None else pending.record
            if joined is None:
                continue
            if joined is theirs:  # the store has it already
                del not_stored[place]
                self._remember(key, joined)
                continue
            if (
                key not in self._pending
            ):  # else a later turn waits that has this one, and is joined as a whole
                pending.move(joined)
                self._remember(key, joined)
            pending.rebases += 1
            again[key] = pending
            not_stored[place] = "rebased"
            self._metrics.session_commits.labels("rebased").inc()
        return again

    def _finish(self, batch: dict[Key, PendingRecord], not_stored: dict[int, str]) -> None:
        """Settles a batch. not_stored: places in it to why."""
        self._in_flight = {}
        for place, (key, pending) in enumerate(batch.items()):
            outcome = not_stored.get(place, "stored")
            if outcome == "rebased":
                continue
            if outcome in {"stale", "deleted"}:  # what was refused otherwise is known here at least
                self._cache.pop(key)
            self._settle(pending, outcome)

    def _put_back(self, batch: dict[Key, PendingRecord]) -> None:
        self._in_flight = {}
        for key, older in reversed(batch.items()):
            newer = self._pending.get(key)
            if newer is not None:
                newer.waiters += older.waiters
                newer.since = older.since
            else:
                self._pending.put_first(key, older, record_bytes(older.record))

    def _drop_surplus(self) -> None:
        for (tenant, _), pending in self._pending.drop_surplus():
            self._repeated.warning(
                "turns that waited for the session store are given up: too many wait",
                subject=tenant,
                remedy="RYZ_SESSION_MAX_PENDING, RYZ_SESSION_PENDING_BYTES",
            )
            self._settle(pending, "dropped")

    def _settle(self, pending: PendingRecord, outcome: str) -> None:
        self._metrics.session_commits.labels(outcome).inc()
        for waiter in pending.waiters:
            if not waiter.future.done():
                waiter.future.set_result(CommitOutcome(outcome, waiter.versions, waiter.turns))

    def _newest(self, key: Key) -> SessionRecord | None:
        waiting = self._pending.get(key) or self._in_flight.get(key)
        return _newer(waiting.record if waiting is not None else None, self._cache.use(key))

    def _remember(self, key: Key, record: SessionRecord) -> None:
        self._cache.put(key, record, time.monotonic())


def _newer(first: SessionRecord | None, second: SessionRecord | None) -> SessionRecord | None:
    """The later turn of both; of two sessions that had the same id, the first."""
    if first is None or second is None:
        return first or second
    later = second.created_ms == first.created_ms and second.version > first.version
    return second if later else first
