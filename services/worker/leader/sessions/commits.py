"""A session's record on its way to the store, the turns that wait for the outcome, and the store."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.worker.domain.generation.sized_entries import Key
from shared.errors import RyzError
from shared.messages import SessionCommitted, SessionRecord


class RecordStore(Protocol):
    """The KV state service, as far as the leader needs it for session records."""

    async def get(self, tenant: str, session_id: str, *, timeout_s: float) -> SessionRecord:
        """Returns the stored record.

        Raises:
            SessionNotFound: There is no such session.
            Unavailable: The service does not answer in time.
        """
        ...

    async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
        """Stores records; returns which ones were not stored.

        Raises:
            Unavailable: The service does not answer in time.
        """
        ...


class CommitOutcome(NamedTuple):
    """The outcome of writing a record.

    Attributes:
        outcome: `stored`, or why it is not: `stale`, `deleted`, `dropped`, `too_large`, `session_quota`,
            `refused`.
        versions: How many versions later it was stored than it was made for, because turns of other groups
            came first.
        turns: The same in turns.
    """

    outcome: str
    versions: int = 0
    turns: int = 0


@dataclass(slots=True)
class CommitWaiter:
    """A turn that waits for the outcome; `versions` and `turns` as in `CommitOutcome`."""

    future: asyncio.Future[CommitOutcome]
    versions: int = 0
    turns: int = 0


@dataclass(slots=True)
class PendingRecord:
    """A record to be written, and the turns in it that wait.

    Attributes:
        record: The newest record of the session.
        since: When the oldest of them was committed, in monotonic seconds.
        rebases: How often the record was put after turns of other groups.
    """

    record: SessionRecord
    waiters: list[CommitWaiter] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    rebases: int = 0

    def rebase_to(self, record: SessionRecord) -> None:
        """Replaces the record by the same turns after those of other groups."""
        for waiter in self.waiters:
            waiter.versions += record.version - self.record.version
            waiter.turns += record.turns - self.record.turns
        self.record = record

    def replace_by(self, newer: "PendingRecord") -> None:
        """Takes over a later turn, so that the older one need not be written."""
        self.record = newer.record
        self.waiters += newer.waiters

    def settle(self, outcome: str) -> None:
        """Wakes the turns that wait."""
        for waiter in self.waiters:
            if not waiter.future.done():
                waiter.future.set_result(CommitOutcome(outcome, waiter.versions, waiter.turns))


async def read_record(
    store: RecordStore, key: Key, timeout_s: float
) -> tuple[SessionRecord | None, RyzError | None]:
    """Returns the stored record of a session, or the error that came instead."""
    try:
        return await store.get(*key, timeout_s=timeout_s), None
    except RyzError as error:
        return None, error
