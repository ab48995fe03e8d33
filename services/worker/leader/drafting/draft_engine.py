"""Keeps the engine of the draft model up, beside the one that serves.

No request depends on it: while it is down there are no guesses of a model.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from services.worker.domain.speculation.draft_cache import DraftCache
from services.worker.orchestrator.failure_recovery_manager import FailureRecoveryManager, RestartPauses
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine, StepPlan, StepResult

log = structlog.get_logger(__name__)
STEP_LIMIT_S = 30.0  # for which steps of the served model wait; the engine itself finds a hung rank earlier
PAUSES = RestartPauses(first_s=1.0, longest_s=30.0, given_up_s=300.0)


class DraftEngine:
    """An engine that is started again when it fails. Call `run_forever` once, and `stop` in any case.

    Args:
        pauses: Before it is started again.
        clock: Returns monotonic seconds.

    Attributes:
        cache: What the engine has computed in its present start; None while it is down.
        up: Set while it is up.
        failure: Why it is down; empty if it is not, or was not started yet.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        pauses: RestartPauses = PAUSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.name = name
        self.cache: DraftCache | None = None
        self.up = asyncio.Event()
        self.failure = ""
        self._recovery = FailureRecoveryManager(pauses)
        self._clock = clock
        self._lost = asyncio.Event()
        self._error: EngineFailed | None = None
        self._step_id = 0

    async def run_forever(self) -> None:
        """Starts the engine, and again after each failure, until cancelled."""
        self.engine.watch_failures(self._lost.set)
        while True:
            self._lost.clear()
            self._error = None
            try:
                self._open(await self.engine.start())
                await self._lost.wait()
                error = self._error or EngineFailed("a rank ended between steps")
            except EngineFailed as failed:
                error = failed
            except Exception as bug:  # it must not end the leader
                log.exception("the draft model could not be started")
                error = EngineFailed(f"{type(bug).__name__} in the leader", "leader_bug")
            self.cache, self.failure = None, str(error)
            self.up.clear()
            recovery = self._recovery.decide_recovery(error.failure, self._clock())
            log.error(
                "the draft model is lost, answers go on without it",
                why=self.failure,
                restart_in_s=round(recovery.pause_s, 2),
            )
            await self.engine.stop()
            if recovery.fresh:
                await self.engine.stop()  # the second call ends what outlives a failure, see `Engine`
            await asyncio.sleep(recovery.pause_s)

    def _open(self, info: EngineInfo) -> None:
        if info.num_sliding_blocks:
            raise EngineRefused("its layers with a sliding window have a KV pool of their own; take another")
        context_length = min(info.context_length, info.num_blocks * BLOCK_SIZE)
        self._recovery.engine_ready(self._clock())
        self.cache, self.failure = DraftCache(info.num_blocks, context_length, info.vocab_size), ""
        self.up.set()
        log.info("the draft model is ready", model=self.name, blocks=info.num_blocks)

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Gives a step to the engine.

        Raises:
            EngineFailed: It has failed.
        """
        return asyncio.ensure_future(self.engine.submit(plan))

    def next_step_id(self) -> int:
        """Returns the number of the next step."""
        self._step_id += 1
        return self._step_id

    def lose(self, error: EngineFailed) -> None:
        """Ends a start whose step has failed or is late."""
        self.cache, self._error = None, error
        self._lost.set()

    async def stop(self) -> None:
        """Ends the engine."""
        self.cache = None
        self.up.clear()
        await self.engine.stop()
        await self.engine.stop()  # also what outlives a failure
