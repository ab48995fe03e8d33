"""Makes the contents of heartbeats."""

import math
import time

import msgspec

from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.options import LeaderOptions
from services.worker.leader.request_table import RequestTable
from services.worker.model_files.model import Model
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from shared.messages import Heartbeat, ModelCard

HALF_LIFE_S = 2.0


class TokenRate:
    """Tokens per second from a running total, smoothed with a half-life of two seconds."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last: tuple[int, float] | None = None

    def update(self, total: int, now: float) -> float:
        """Takes the total so far; returns the rate. A second call at the same time returns the same."""
        if self._last is None:
            self._last = (total, now)
            return self._rate
        seconds = now - self._last[1]
        if seconds > 0:
            kept = math.exp2(-seconds / HALF_LIFE_S)
            self._rate = kept * self._rate + (1 - kept) * (total - self._last[0]) / seconds
            self._last = (total, now)
        return self._rate


class GroupDescription:
    """Describes the group; keeps nothing but the average of its speed."""

    def __init__(
        self,
        options: LeaderOptions,
        model: Model,
        orchestrator: MultiGPUOrchestrator,
        engine: EngineState,
        table: RequestTable,
        *,
        kv_tier: KVTier,
    ) -> None:
        self._options = options
        self._model = model
        self._orchestrator = orchestrator
        self._engine = engine
        self._table = table
        self._kv_tier = kv_tier
        self._created_s = int(time.time())
        self._rate = TokenRate()

    def heartbeat(self) -> Heartbeat:
        """Returns the group as it is now; the heartbeat gets its number when it is sent."""
        options, table, engine = self._options, self._table, self._engine
        scheduler = engine.scheduler
        rate = self._rate.update(engine.num_tokens, engine.clock())
        return Heartbeat(
            group=options.group,
            instance_id=options.instance_id,
            seq=0,
            interval_ms=options.heartbeat_interval_ms,
            state=self._orchestrator.state,
            model=ModelCard(
                name=self._model.name,
                context_length=engine.facts.context_length,
                fingerprint=engine.info.fingerprint if engine.info else "",
                created_s=self._created_s,
                chat=self._model.template is not None,
                sampling=self._model.sampling,
                tenants=list(self._model.tenants),
            ),
            load=msgspec.structs.replace(table.load(), tokens_per_s=rate),
            tensor_parallel=options.tensor_parallel,
            weight=options.weight,
            accepted_total=table.counts.taken,
            kv=self._kv_tier.rates(),
            ended_total=table.counts.ended,
            broken_total=table.counts.broken,
            adapters=scheduler.queues.adapters.pool.ready_fingerprints() if scheduler is not None else [],
            guest=engine.facts.guest,
        )
