"""A session store behind a guard, which has a circuit.

`watch` probes the store, so that the circuit closes again without a caller's help, and opens without one.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog

from services.kvstate.domain.session_merge import PageCursor, SessionEntry
from services.kvstate.redis.store_guard import Guard
from services.kvstate.sessions.session_store import (
    PinOutcome,
    PutOutcome,
    SessionFate,
    SessionStore,
    SessionTally,
    StoredPins,
    StoreUnwritable,
    SummaryPage,
)
from shared.errors import Unavailable
from shared.messages import SessionSummary

R = TypeVar("R")
log = structlog.get_logger(__name__)


class GuardedStore:
    """Implements `SessionStore` on top of another one."""

    def __init__(self, store: SessionStore, guard: Guard) -> None:
        self.circuit = guard.circuit
        self.last = SessionTally()
        self.writable = True  # as far as is known: its disk is not full
        self._store = store
        self._guard = guard

    async def get(self, tenant: str, session_id: str) -> bytes | None:
        """See `SessionStore.get`."""
        return await self._guard.call(lambda: self._store.get(tenant, session_id))

    async def put(self, entries: Sequence[SessionEntry]) -> PutOutcome:
        """See `SessionStore.put`."""
        return await self._guard.call(lambda: self._noted(self._store.put(entries)))

    async def page(self, tenant: str, limit: int, after: PageCursor | None) -> SummaryPage:
        """See `SessionStore.page`."""
        return await self._guard.call(lambda: self._store.page(tenant, limit, after))

    async def deleted_ms(self, tenant: str, session_id: str) -> int | None:
        """See `SessionStore.deleted_ms`."""
        return await self._guard.call(lambda: self._store.deleted_ms(tenant, session_id))

    async def fates(self, places: Sequence[tuple[str, str]]) -> list[SessionFate]:
        """See `SessionStore.fates`."""
        return await self._guard.call(lambda: self._store.fates(places))

    async def describe(self, tenant: str, session_id: str) -> SessionSummary | None:
        """See `SessionStore.describe`."""
        return await self._guard.call(lambda: self._store.describe(tenant, session_id))

    async def pin(self, tenant: str, session_id: str, group: str) -> PinOutcome:
        """See `SessionStore.pin`."""
        return await self._guard.call(lambda: self._noted(self._store.pin(tenant, session_id, group)))

    async def pins(self, limit: int, after: str) -> StoredPins:
        """See `SessionStore.pins`."""
        return await self._guard.call(lambda: self._store.pins(limit, after))

    async def delete(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete`."""
        return await self._guard.call(lambda: self._noted(self._store.delete(tenant, session_id)))

    async def can_write(self) -> bool:
        """See `SessionStore.can_write`."""
        self.writable = await self._guard.probe(self._store.can_write())
        return self.writable

    async def tally(self) -> SessionTally:
        """See `SessionStore.tally`; asks the store also while the circuit is open."""
        self.last = await self._guard.probe(self._store.tally())
        return self.last

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._store.close()

    async def watch(self, every_s: float, open_every_s: float) -> None:
        """Counts until it is cancelled, more often while the circuit is open. Run it as a task."""
        task = asyncio.current_task()
        while not (task and task.cancelling()):  # a cancellation may get lost in a call that just ended
            await self.probe()
            await asyncio.sleep(open_every_s if self.circuit.open else every_s)

    async def _noted(self, call: Awaitable[R]) -> R:
        try:
            return await call
        except StoreUnwritable as error:
            if self.writable:
                log.error("nothing is stored", error=error.message)
            self.writable = False
            raise

    async def probe(self) -> None:
        """Asks the store once, so that the circuit is as it should be."""
        try:
            await self.can_write()
            await self.tally()
        except Unavailable as error:
            log.debug("session store away", error=error.message)  # the guard told of the change
