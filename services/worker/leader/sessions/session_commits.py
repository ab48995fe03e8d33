"""A session's record on its way to the store, who waits to hear what became of it, and the store."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shared.messages import SessionCommitted, SessionRecord


class RecordStore(Protocol):
    """The KV state service, as far as the leader needs it."""

    async def get(self, tenant: str, session_id: str, *, timeout_s: float) -> SessionRecord:
        """The stored record; raises `SessionNotFound`, or `Unavailable` when nobody answers in time."""
        ...

    async def commit(self, records: list[SessionRecord], *, timeout_s: float) -> SessionCommitted:
        """Stores records; says which ones were not. Raises `Unavailable` when nobody answers in time."""
        ...


class CommitOutcome(NamedTuple):
    """What became of a record.

    outcome: `stored`, or why it is not: `stale`, `deleted`, `dropped`, `too_large`,
    `session_quota`, `refused`.
    versions, turns: by how many it came later than it was made for, because turns of other groups came first.
    """

    outcome: str
    versions: int = 0
    turns: int = 0


@dataclass(slots=True)
class CommitWaiter:
    """A turn that waits for the word of the store; versions, turns: as in `CommitOutcome`."""

    future: asyncio.Future[CommitOutcome]
    versions: int = 0
    turns: int = 0


@dataclass(slots=True)
class PendingRecord:
    """A record, and the turns in it that wait. rebases: how often it was put after turns of others."""

    record: SessionRecord
    waiters: list[CommitWaiter] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    rebases: int = 0

    def move(self, record: SessionRecord) -> None:
        """The record goes after turns of others."""
        for waiter in self.waiters:
            waiter.versions += record.version - self.record.version
            waiter.turns += record.turns - self.record.turns
        self.record = record
