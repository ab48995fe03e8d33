"""The state of a group, which heartbeats carry, and the starts and restarts of its engine.

`TRANSITIONS` lists all changes of state. `FailureRecoveryManager` decides what follows a failure. The
leader's engine loop drives this class and takes care of the requests.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal

import structlog

from services.worker.orchestrator.failure_recovery_manager import FailureRecoveryManager, Recovery
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import Engine
from shared.messages import State

log = structlog.get_logger(__name__)
Event = Literal["up", "lost", "gave up", "drain", "stop"]

# up: the engine is ready. lost: it failed, and is started again. gave up: the same, after a long pause.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    "starting": {
        "up": "ready", "lost": "recovering", "gave up": "failed", "drain": "draining", "stop": "stopped",
    },
    "ready": {"lost": "recovering", "gave up": "failed", "drain": "draining", "stop": "stopped"},
    "recovering": {
        "up": "ready", "lost": "recovering", "gave up": "failed", "drain": "draining", "stop": "stopped",
    },
    "failed": {
        "up": "ready", "lost": "failed", "gave up": "failed", "drain": "draining", "stop": "stopped",
    },
    # a group that takes no more work needs no new engine
    "draining": {
        "up": "draining", "lost": "draining", "gave up": "draining", "drain": "draining", "stop": "stopped",
    },
    "stopped": {"drain": "stopped", "stop": "stopped"},
}  # fmt: skip


class MultiGPUOrchestrator:
    """One group's engine and its state.

    Attributes:
        failure: Why it is "recovering" or "failed"; empty if it is neither.
        is_up: True while the engine can compute.
    """

    def __init__(
        self,
        engine: Engine,
        recovery: FailureRecoveryManager | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state: State = "starting"
        self.failure = ""
        self.is_up = False
        self._engine = engine
        self._recovery = recovery or FailureRecoveryManager()
        self._clock = clock
        self._next: Recovery | None = None

    async def start(self) -> EngineInfo:
        """Start the engine.

        Raises:
            EngineFailed: It did not start.
        """
        info = await self._engine.start()
        self._recovery.engine_ready(self._clock())
        self._enter("up")
        self.is_up, self.failure = True, ""
        return info

    def lost(self, error: EngineFailed) -> Recovery:
        """Note that the engine failed or did not start, and decide on the restart (`restart_due`)."""
        self.is_up, self.failure = False, str(error)
        self._next = self._recovery.decide_recovery(error.failure, self._clock())
        self._enter("gave up" if self._next.gives_up else "lost")
        return self._next

    async def restart_due(self) -> None:
        """End the rest of the engine, and return when it is to be started; never return while draining."""
        recovery = self._next
        assert recovery is not None, "nothing was lost"
        await self._engine.stop()
        if recovery.fresh:
            await self._engine.stop()  # the second call ends what outlives a failure, see `Engine`
        await asyncio.sleep(recovery.pause_s)
        if self.state in {"draining", "stopped"}:
            await asyncio.get_running_loop().create_future()

    def drain(self) -> None:
        """Enter "draining": the group takes no more work, and a failed engine is not started again."""
        self._enter("drain")

    def stop(self) -> None:
        """Enter "stopped"."""
        self._enter("stop")

    def _enter(self, event: Event) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise RuntimeError(
                f"a group that is {self.state} got {event!r}, for which there is no transition"
            )
        if after != self.state:
            log.info("the group's state", state=after, before=self.state, cause=event)
        self.state = after
