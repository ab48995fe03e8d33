"""A session store with a time limit on every call, and a circuit: nobody waits for a store that is away.

`watch` probes the store, so that the circuit closes again without a caller's help, and opens without one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from services.kvstate.domain.records import Cursor, Entry
from services.kvstate.store import Page, SessionStore, StoreAway
from shared.circuit import Circuit
from shared.errors import Unavailable

R = TypeVar("R")
log = structlog.get_logger(__name__)


class GuardedStore:
    """Implements `SessionStore` on top of another one. `clock` gives monotonic seconds."""

    def __init__(
        self, store: SessionStore, circuit: Circuit, *, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self.circuit = circuit
        self.last_count = 0
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock

    async def get(self, tenant: str, session_id: str) -> bytes | None:
        """See `SessionStore.get`."""
        self._check()
        return await self._bounded(self._store.get(tenant, session_id))

    async def put(self, entries: Sequence[Entry]) -> list[bool]:
        """See `SessionStore.put`."""
        self._check()
        return await self._bounded(self._store.put(entries))

    async def page(self, tenant: str, limit: int, after: Cursor | None) -> Page:
        """See `SessionStore.page`."""
        self._check()
        return await self._bounded(self._store.page(tenant, limit, after))

    async def delete(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete`."""
        self._check()
        return await self._bounded(self._store.delete(tenant, session_id))

    async def count(self) -> int:
        """See `SessionStore.count`; asks the store also while the circuit is open."""
        self.last_count = await self._bounded(self._store.count())
        return self.last_count

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._store.close()

    async def watch(self, every_s: float, open_every_s: float) -> None:
        """Counts for ever, more often while the circuit is open. Run it as a task; cancel it to end it."""
        while True:
            await self.probe()
            await asyncio.sleep(open_every_s if self.circuit.open else every_s)

    async def probe(self) -> None:
        """Asks the store once, so that the circuit is as it should be."""
        try:
            await self.count()
        except Unavailable as error:
            log.debug("session store away", error=error.message)  # `_bounded` told of the change

    def _check(self) -> None:
        if self.circuit.open:
            retry_after_s = round(self.circuit.retry_after_s(self._clock()), 3)
            raise Unavailable(
                "the session store is away; retry later", reason="session_store", retry_after_s=retry_after_s
            )

    async def _bounded(self, call: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await call
        except StoreAway as error:
            self._failed(error, refused=error.refused)
            raise
        except TimeoutError as error:
            self._failed(error, refused=False)
            raise StoreAway("the session store did not answer in time; retry later", refused=False) from error
        if self.circuit.succeeded():
            log.info("session store is back")
        return result

    def _failed(self, error: Exception, *, refused: bool) -> None:
        if self.circuit.failed(self._clock(), refused=refused):
            log.warning("session store is away", error=str(error), cause=str(error.__cause__ or ""))
