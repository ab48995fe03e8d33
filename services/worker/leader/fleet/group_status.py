"""Makes the group's part of `ryz status`."""

from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.session_records import SessionRecords
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator

RECORDS_LATE_S = 5.0  # session records that wait for longer mean that their store is away


class GroupStatus:
    """Reads the parts of the leader when it is asked."""

    def __init__(
        self,
        context: LeaderContext,
        orchestrator: MultiGPUOrchestrator,
        engine: EngineState,
        table: RequestTable,
        kv_tier: KVTier,
        *,
        sessions: SessionRecords,
    ) -> None:
        self._context = context
        self._orchestrator = orchestrator
        self._engine = engine
        self._table = table
        self._kv_tier = kv_tier
        self._sessions = sessions

    def detail(self) -> dict[str, object]:
        """Returns the group's state, load and caches."""
        table, sessions, engine = self._table, self._sessions, self._engine
        load, scheduler = table.load(), engine.scheduler
        return {
            "group": self._context.group,
            "model": self._context.model,
            "fingerprint": engine.info.fingerprint if engine.info else "",
            "state": self._orchestrator.state,
            "failure": self._orchestrator.failure,
            "degraded": self.degraded(),
            "running": load.running,
            "waiting": load.waiting,
            "free_blocks": load.free_blocks,
            "total_blocks": load.total_blocks,
            "requests": len(table.by_key),
            "retained_bytes": table.buffer.num_bytes,
            "cached_blocks": scheduler.blocks.num_cached if scheduler else 0,
            "kv_store": self._kv_tier.describe(),
            "sessions_cached": sessions.num_cached,
            "sessions_pending": sessions.writer.num_pending,
            "ranks": engine.engine.status(),
        }

    def degraded(self) -> list[str]:
        """Returns the stores that the group does without at present; docs/operations.md explains them."""
        stores = {
            "kv_store": self._kv_tier.away,
            "session_store": self._sessions.writer.pending_s > RECORDS_LATE_S,
        }
        return [name for name, missing in stores.items() if missing]
