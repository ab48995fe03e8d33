"""Starts the engine, and ends its requests when it fails.

When it is started again is decided by `MultiGPUOrchestrator`.
"""

from collections.abc import Awaitable, Callable

import structlog

from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed
from shared.errors import GroupLost, Poison

log = structlog.get_logger(__name__)


class EngineSupervisor:
    """Keeps engine state, KV tier and requests in step with the engine's starts and failures.

    Args:
        orchestrator: Starts the engine and keeps the group's state.
        engine: Written at each start and failure.
        table: Its requests are failed with the engine.
        kv_tier: Opened and closed with the engine.
        announce: Sends a heartbeat at once.
    """

    def __init__(
        self,
        context: LeaderContext,
        orchestrator: MultiGPUOrchestrator,
        engine: EngineState,
        table: RequestTable,
        kv_tier: KVTier,
        *,
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        self._metrics = context.metrics
        self._orchestrator = orchestrator
        self._engine = engine
        self._table = table
        self._kv_tier = kv_tier
        self._announce = announce

    @property
    def is_up(self) -> bool:
        """Whether the engine computes."""
        return self._orchestrator.is_up

    async def start_engine(self) -> EngineInfo:
        """Starts the engine. Raises `EngineFailed` when it does not come up."""
        info = await self._orchestrator.start()
        self._engine.begin_start(info)
        self._kv_tier.open_store()
        return info

    async def announce_recovery(self) -> None:
        """Reports to routers that the engine is up again."""
        log.info("the engine is ready again")
        await self._announce()

    def lose_engine(self, error: EngineFailed) -> None:
        """Ends all requests after a failure of the engine; those that may have caused it as suspects."""
        recovery, why = self._orchestrator.lost(error), str(error)
        rank = {"rank": error.failure.rank} if error.failure.rank >= 0 else {}
        log.error(
            "the engine failed",
            why=why,
            **rank,
            kind=error.failure.kind,
            restart_in_s=round(recovery.pause_s, 2),
            gives_up=recovery.gives_up,
        )
        self._metrics.engine_failures.labels(error.failure.kind).inc()
        scheduler = self._engine.end_start()
        failure, suspects = error.failure, set[str]()
        if failure.fault and scheduler is not None:
            suspects = scheduler.requests_in(failure.step_ids)
        self._kv_tier.close_store()
        fail_suspects(self._table, suspects, why)
        self._table.fail_all(GroupLost(f"the group's engine failed: {why}", reason="engine_failed"))

    async def restart_due(self) -> None:
        """Announces the loss, and returns when the engine is to be started again."""
        await self._announce()
        await self._orchestrator.restart_due()


def fail_suspects(table: RequestTable, keys: set[str], why: str) -> None:
    """Fails the requests that were computed when the engine died by a fault of its own, and no others.

    If there are several, each goes on elsewhere as a suspect, and runs alone there for a while
    (`domain/scheduling/crash_trials.py`). A request that was alone in the fatal step, and was in the fatal
    step of another engine before, has killed two engines: it fails as poison.
    """
    suspects = [one for key in sorted(keys) if (one := table.by_key.get(key)) is not None]
    for generation in suspects:
        request = generation.request
        if len(suspects) == 1 and request.crashes:
            log.error(
                "request is poison",
                **generation.log_ids,
                tenant=request.tenant,
                why=why,
                deaths=request.crashes + 1,
            )
            error: GroupLost | Poison = Poison(
                f"{request.crashes + 1} engines died while they computed request {request.request_id}, the "
                "last one computed nothing else; it is not offered to another group. Do not send it again; "
                "the group's log has the cause",
                reason="engine_failed",
            )
        else:
            error = GroupLost(f"the group's engine failed: {why}", reason="engine_failed", suspect=True)
        table.fail_request(generation, error)
