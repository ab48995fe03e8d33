"""Writes session records behind the turns: in batches, tenants in rotation, again after a failure.

Records that were made without a turn of another group are put after that turn and written again.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain

import structlog

from services.worker.domain.generation.session_cache import SessionCache, record_bytes
from services.worker.domain.generation.session_merge import rebase
from services.worker.domain.generation.sized_entries import Key, SizedEntries
from services.worker.leader.sessions.commits import PendingRecord, RecordStore, read_record
from services.worker.leader.sessions.record_limits import SessionRecordLimits
from services.worker.metrics import WorkerMetrics
from shared.errors import (
    DISK_FULL,
    InvalidRequest,
    RequestTooLarge,
    RyzError,
    SessionNotFound,
    Unavailable,
)
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)
MAX_BATCH = 256
GATHER_S = 0.1  # for which records wait for others if no turn waits for them
RETRY_S = (0.05, 2.0)  # first and longest pause after a failed commit
MAX_REBASES = 8  # of one record; each means that another group has stored a turn since


class RecordWriter:
    """The records that are not stored yet.

    Args:
        cache: Is kept in step with what the store says.
        max_payload: Returns the largest message that the bus takes, in bytes.

    Attributes:
        trouble: Why the last write failed, `store_away` or `disk_full`; empty if it did not.
    """

    def __init__(
        self,
        store: RecordStore,
        cache: SessionCache,
        limits: SessionRecordLimits,
        metrics: WorkerMetrics,
        max_payload: Callable[[], int],
    ) -> None:
        self.trouble = ""
        self._store = store
        self._cache = cache
        self._limits = limits
        self._metrics = metrics
        self._max_payload = max_payload
        self._pending: SizedEntries[PendingRecord] = SizedEntries(
            most=limits.max_pending, most_bytes=limits.session_pending_bytes
        )
        self._max_batch = MAX_BATCH
        self._in_flight: dict[Key, PendingRecord] = {}
        self._repeated = RepeatedLog(log)
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def num_pending(self) -> int:
        """Records that are not acknowledged yet."""
        return len(self._pending) + len(self._in_flight)

    @property
    def pending_s(self) -> float:
        """Seconds for which the oldest record has waited to be stored."""
        since = [pending.since for pending in chain(self._pending.values(), self._in_flight.values())]
        return time.monotonic() - min(since) if since else 0.0

    def waiting(self, key: Key) -> PendingRecord | None:
        """Returns the newest record of a session that is not acknowledged yet."""
        return self._pending.get(key) or self._in_flight.get(key)

    def queue_record(self, key: Key, pending: PendingRecord, *, hurry: bool = True) -> PendingRecord:
        """Queues a record in place of an older one of its session; returns the entry.

        Args:
            hurry: Write it at once, not together with others some milliseconds later.
        """
        older = self._pending.get(key)
        if older is not None:
            older.replace_by(pending)
            pending = older
        self._pending.put(key, pending, record_bytes(pending.record))
        self._drop_surplus()
        self._wake.set()
        if hurry:
            self._hurry.set()
        return pending

    def discard_deleted(self, key: Key) -> None:
        """Drops the queued record of a session that was deleted; the store refuses one in flight."""
        pending = self._pending.pop(key)
        if pending is not None:
            self.settle(pending, "deleted")

    def settle(self, pending: PendingRecord, outcome: str) -> None:
        """Counts the outcome of a record, and wakes the turns that wait."""
        self._metrics.session_commits.labels(outcome).inc()
        pending.settle(outcome)

    async def write_forever(self) -> None:
        """Writes a batch after the last one was acknowledged, until cancelled."""
        pause = RETRY_S[0]
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                await self._gather_more()
                if await self._write_batch():
                    pause = RETRY_S[0]
                else:
                    await asyncio.sleep(pause)
                    pause = min(RETRY_S[1], pause * 2)

    async def _gather_more(self) -> None:
        """Waits for more records, which share a message to the store and a script in it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._hurry.wait()
        self._hurry.clear()

    async def flush_records(self, timeout_s: float) -> bool:
        """Writes everything at the end, when `write_forever` was cancelled; returns whether it could."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._pending:
                    if not await self._write_batch():
                        await asyncio.sleep(RETRY_S[0])
        except TimeoutError:
            return False
        return True

    async def _write_batch(self) -> bool:
        """Writes one batch; returns False if the store is away."""
        batch = self._pending.take(self._max_batch, self._max_payload() // 2)
        self._in_flight = batch
        try:
            answer = await self._store.commit(
                [pending.record for pending in batch.values()], timeout_s=self._limits.commit_timeout_s
            )
        except (Unavailable, asyncio.CancelledError) as loss:
            full = isinstance(loss, Unavailable) and loss.data.get("reason") == DISK_FULL
            self.trouble = DISK_FULL if full else "store_away"
            self._put_back(batch)
            if isinstance(loss, asyncio.CancelledError):
                raise
            return False
        except RyzError as error:
            self.trouble = ""
            if len(batch) > 1 and isinstance(error, RequestTooLarge | InvalidRequest):
                self._max_batch = len(batch) // 2  # until the record that is refused stands alone
                self._put_back(batch)
                return True
            self._max_batch = MAX_BATCH
            log.warning("session records refused", number=len(batch), error=error.message)
            outcome = "too_large" if isinstance(error, RequestTooLarge) else "refused"
            self._end_batch(batch, dict.fromkeys(range(len(batch)), outcome))
            return True
        self.trouble, self._max_batch = "", MAX_BATCH
        not_stored = dict.fromkeys(answer.stale, "stale") | dict.fromkeys(answer.deleted, "deleted")
        not_stored |= dict.fromkeys(answer.too_large, "too_large")
        not_stored |= dict.fromkeys(answer.over_quota, "session_quota")
        again = await self._rebase_stale(batch, not_stored)
        self._end_batch(batch, not_stored)
        if again:
            self._put_back(again)
        return True

    async def _rebase_stale(
        self, batch: dict[Key, PendingRecord], not_stored: dict[int, str]
    ) -> dict[Key, PendingRecord]:
        """Puts stale records after the turns of other groups that they were made without.

        Args:
            batch: The records that were written.
            not_stored: Indices in the batch to outcomes. Records that are written again become `rebased`;
                those that cannot be joined stay `stale`.

        Returns:
            The records that are to be written again.
        """
        again: dict[Key, PendingRecord] = {}
        for index, (key, pending) in enumerate(tuple(batch.items())):
            exhausted = pending.rebases >= MAX_REBASES or not pending.record.recent
            if not_stored.get(index) != "stale" or exhausted:
                continue
            theirs, problem = await read_record(self._store, key, self._limits.lookup_timeout_s)
            if isinstance(problem, SessionNotFound) and problem.data.get("deleted"):
                not_stored[index] = "deleted"
                continue
            joined = rebase(pending.record, theirs) if theirs is not None else pending.record
            if joined is None:
                continue
            if joined is theirs:  # the store has it already
                del not_stored[index]
                self._cache.put(key, joined, time.monotonic())
                continue
            if key not in self._pending:  # else a later turn waits, which contains this one
                pending.rebase_to(joined)
                self._cache.put(key, joined, time.monotonic())
            pending.rebases += 1
            again[key] = pending
            not_stored[index] = "rebased"
            self._metrics.session_commits.labels("rebased").inc()
        return again

    def _end_batch(self, batch: dict[Key, PendingRecord], not_stored: dict[int, str]) -> None:
        """Settles a batch; `not_stored` maps indices in it to outcomes."""
        self._in_flight = {}
        for index, (key, pending) in enumerate(batch.items()):
            outcome = not_stored.get(index, "stored")
            if outcome == "rebased":
                continue
            if outcome in {"stale", "deleted"}:  # records that were refused otherwise stay known here
                self._cache.pop(key)
            self.settle(pending, outcome)

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
                remedy="RYZ_SESSION_PENDING_BYTES",
            )
            self.settle(pending, "dropped")
