"""Health of the KV store: one circuit breaker for lookups, one for moving bytes.

Lookups go to the KV state service, bytes to the store itself. Either may work without the other, and one that
works must not hide one that does not. While one is open no request waits for the store; probes close it.
"""

import structlog

from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.leader.context import LeaderContext
from shared.flow.circuit import Circuit, CircuitLimits

log = structlog.get_logger(__name__)


class StoreHealth:
    """The circuits, and their effect on the scheduler's write-behind.

    Args:
        limits: When a circuit opens, and when it is probed.
        writes: Whether blocks are written at all.

    Attributes:
        lookups: Circuit of the KV state service.
        moves: Circuit of the bytes.
    """

    def __init__(self, context: LeaderContext, limits: CircuitLimits, *, writes: bool) -> None:
        self.lookups = Circuit(limits)
        self.moves = Circuit(limits)
        self._behind: WriteBehind | None = None
        self._metrics = context.metrics
        self._clock = context.clock
        self._writes = writes
        self._paused_until = 0.0
        self._metrics.kv_store_up.set(1)

    @property
    def away(self) -> bool:
        """Whether blocks are neither looked up nor fetched now."""
        return not (self.lookups.is_closed and self.moves.is_closed)

    @property
    def losses(self) -> int:
        """How often a circuit has opened."""
        return self.lookups.opened_total + self.moves.opened_total

    @property
    def paused(self) -> bool:
        """Whether writing pauses, since the store has no room."""
        return self._clock() < self._paused_until

    def control(self, behind: WriteBehind | None) -> None:
        """Applies the circuits to the write-behind of an engine that was started; None when it is down."""
        self._behind = behind
        self.apply()

    def record_success(self, circuit: Circuit) -> None:
        """Records that the store did in time what it was asked for."""
        if circuit.count_success() and not self.away:
            log.info("the KV store is back")
            self.apply()

    def record_failure(self, circuit: Circuit, why: str) -> None:
        """Records that it did not."""
        was_away = self.away
        if circuit.count_failure(self._clock()) and not was_away:
            log.warning("the KV store is away; prompts are computed instead", why=why)
            self.apply()

    def pause_writes(self, seconds: float) -> None:
        """Stops writing for a while, since the store has no room; blocks are still read."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        self.apply()

    def apply(self) -> None:
        """Applies circuits and pause to the write-behind; called when a pause may be over, too."""
        self._metrics.kv_store_up.set(0 if self.away else 1)
        if self._behind is not None:
            self._behind.switch(enabled=not self.away, writes=self._writes and not self.paused)
