"""A time limit on every call to a store, and a circuit: nobody waits for a store that is away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from services.kvstate.store import StoreAway
from shared.circuit import Circuit
from shared.errors import Unavailable

R = TypeVar("R")
log = structlog.get_logger(__name__)


class Guard:
    """Stands before one store; `name` and `reason` are as in `RedisLink`. `clock` gives monotonic seconds."""

    def __init__(
        self, circuit: Circuit, *, timeout_s: float, clock: Callable[[], float], name: str, reason: str
    ) -> None:
        self.circuit = circuit
        self._timeout_s = timeout_s
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
        return await self.bounded(make())

    async def bounded(self, call: Awaitable[R]) -> R:
        """Runs a call within the time limit, also while the circuit is open, and tells the circuit."""
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await call
        except StoreAway as error:
            self._failed(error, refused=error.refused)
            raise
        except TimeoutError as error:
            self._failed(error, refused=False)
            raise StoreAway(
                f"the {self._name} did not answer in time; retry later", reason=self._reason, refused=False
            ) from error
        if self.circuit.succeeded():
            log.info("store is back", store=self._name)
        return result

    def _failed(self, error: Exception, *, refused: bool) -> None:
        if self.circuit.failed(self._clock(), refused=refused):
            log.warning("store is away", store=self._name, error=str(error) or "no answer in time",
                        cause=str(error.__cause__ or ""))  # fmt: skip
