"""What a group says of itself: in heartbeats to routers, and in its status to people."""

import time

import msgspec

from services.worker.domain.scheduling.compute_rate import TokenRate
from services.worker.leader.engine_loop import EngineLoop
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.options import LeaderOptions
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.session_records import SessionRecords
from services.worker.model_dir import Model
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from services.worker.rank_protocol.plan import Engine
from shared.messages import Heartbeat, ModelCard

RECORDS_LATE_S = 5.0  # session records that wait for longer mean that their store is away


class GroupDescription:
    """Reads the leader's parts when it is asked; keeps nothing but the average of the group's speed."""

    def __init__(
        self,
        options: LeaderOptions,
        model: Model,
        *,
        engine: Engine,
        group: MultiGPUOrchestrator,
        loop: EngineLoop,
        generations: RequestTable,
        kv_tier: KVTier,
        sessions: SessionRecords,
    ) -> None:
        self._options = options
        self._model = model
        self._engine = engine
        self._group = group
        self._loop = loop
        self._generations = generations
        self._kv_tier = kv_tier
        self._sessions = sessions
        self._created_s = int(time.time())
        self._rate = TokenRate()

    def heartbeat(self, taken: int) -> Heartbeat:
        """How the group is now; the heartbeat gets its number when it is sent.

        taken: `Work` messages so far.
        """
        options, generations, loop = self._options, self._generations, self._loop
        rate = self._rate.update(loop.num_tokens, generations.clock())
        return Heartbeat(
            group=options.group,
            instance_id=options.instance_id,
            seq=0,
            interval_ms=round(options.heartbeat_interval_s * 1000),
            state=self._group.state,
            model=ModelCard(
                name=self._model.name,
                context_length=loop.room.context_length,
                fingerprint=loop.info.fingerprint if loop.info else "",
                created_s=self._created_s,
                chat=self._model.template is not None,
            ),
            load=msgspec.structs.replace(generations.load(), tokens_per_s=rate),
            tensor_parallel=options.tensor_parallel,
            weight=options.weight,
            accepted_total=taken,
            kv=self._kv_tier.rates(),
            ended_total=generations.endings.ended,
            broken_total=generations.endings.broken,
        )

    def detail(self) -> dict[str, object]:
        """What `ryz status` shows of the group."""
        generations, sessions, info = self._generations, self._sessions, self._loop.info
        load, scheduler = generations.load(), generations.scheduler
        return {
            "group": self._options.group,
            "model": self._model.name,
            "fingerprint": info.fingerprint if info else "",
            "state": self._group.state,
            "failure": self._group.failure,
            "degraded": self.degraded(),
            "running": load.running,
            "waiting": load.waiting,
            "free_blocks": load.free_blocks,
            "total_blocks": load.total_blocks,
            "requests": len(generations.by_id),
            "retained_bytes": generations.outbox.num_bytes,
            "cached_blocks": scheduler.blocks.num_cached if scheduler else 0,
            "kv_store": self._kv_tier.describe(),
            "sessions_cached": sessions.num_cached,
            "sessions_pending": sessions.num_pending,
            "ranks": self._engine.status(),
        }

    def degraded(self) -> list[str]:
        """What the group does without at present; it serves all the same. docs/operations.md has the list."""
        parts = {
            "kv_store": self._kv_tier.away,
            "session_store": self._sessions.pending_s > RECORDS_LATE_S,
        }
        return [name for name, missing in parts.items() if missing]
