"""Whether the store is used at present: one circuit for asking the KV state service, one for moving bytes.

They are apart since either may work without the other, and what works must not hide what does not. While one
is open nobody waits for the store; probes close it.
"""

from collections.abc import Callable

import structlog

from services.worker.domain.scheduling.write_behind import WriteBehind
from services.worker.metrics import WorkerMetrics
from shared.circuit import Circuit, CircuitLimits

log = structlog.get_logger(__name__)


class StoreHealth:
    """writes: whether blocks are written at all. behind: of the engine that runs now; None: there is none."""

    def __init__(
        self, limits: CircuitLimits, metrics: WorkerMetrics, clock: Callable[[], float], *, writes: bool
    ) -> None:
        self.lookups = Circuit(limits)
        self.moves = Circuit(limits)
        self.behind: WriteBehind | None = None
        self._metrics = metrics
        self._clock = clock
        self._writes = writes
        self._paused_until = 0.0
        metrics.kv_store_up.set(1)

    @property
    def away(self) -> bool:
        """Whether nobody is to ask or fetch now."""
        return self.lookups.open or self.moves.open

    @property
    def losses(self) -> int:
        """How often it went away."""
        return self.lookups.opened_total + self.moves.opened_total

    @property
    def paused(self) -> bool:
        """Whether nothing is written for a while, since there is no room."""
        return self._clock() < self._paused_until

    def serve(self, behind: WriteBehind | None) -> None:
        """An engine was started, or is gone."""
        self.behind = behind
        self.switch()

    def worked(self, circuit: Circuit) -> None:
        """The store did in time what it was asked for."""
        if circuit.succeeded() and not self.away:
            log.info("the KV store is back")
            self.switch()

    def failed(self, circuit: Circuit, why: str) -> None:
        """It did not."""
        was_away = self.away
        if circuit.failed(self._clock(), refused=False) and not was_away:
            log.warning("the KV store is away; prompts are computed instead", why=why)
            self.switch()

    def pause(self, seconds: float) -> None:
        """There is no room in the store: nothing is written for a while, and what is there is still read."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        self.switch()

    def switch(self) -> None:
        """Makes what the scheduler does agree with the circuits; call it when a pause may be over, too."""
        self._metrics.kv_store_up.set(0 if self.away else 1)
        behind = self.behind
        if behind is not None:
            if self.away and behind.enabled:
                behind.forget_all()  # it may come back empty
            behind.enabled = not self.away
            behind.writes = self._writes and not self.paused
