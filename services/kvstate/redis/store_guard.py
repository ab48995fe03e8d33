"""A circuit before a store: no call waits for a store that is away.

Only what the store did is trouble: a time limit on its answers is the link's (`redis_link.py`). Time that a
call waits in this service does not count, or one tenant's calls could close the store off for all.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from services.kvstate.sessions.session_store import StoreAway
from shared.circuit import Circuit
from shared.errors import Unavailable

R = TypeVar("R")
log = structlog.get_logger(__name__)


class Guard:
    """Stands before one store; `name` and `reason` are as in `RedisLink`. `clock` gives monotonic seconds."""

    def __init__(self, circuit: Circuit, *, clock: Callable[[], float], name: str, reason: str) -> None:
        self.circuit = circuit
        self._clock = clock
        self._name = name
        self._reason = reason

    async def call(self, make: Callable[[], Awaitable[R]]) -> R:
        """Makes the call unless the circuit is open; raises `Unavailable` at once if it is."""
        if self.circuit.open:
            retry_after_s = round(self.circuit.retry_after_s(self._clock()), 3)
            raise Unavailable(
                f"the {self._name} is away; retry later", reason=self._reason, retry_after_s=retry_after_s
            )
        return await self.probe(make())

    async def probe(self, call: Awaitable[R]) -> R:
        """Runs a call, also while the circuit is open, and tells the circuit how it went."""
        try:
            result = await call
        except StoreAway as error:
            self._failed(error, refused=error.refused)
            raise
        if self.circuit.succeeded():
            log.info("store is back", store=self._name)
        return result

    def _failed(self, error: StoreAway, *, refused: bool) -> None:
        if self.circuit.failed(self._clock(), refused=refused):
            log.warning("store is away", store=self._name, error=error.message,
                        cause=str(error.__cause__ or ""))  # fmt: skip
