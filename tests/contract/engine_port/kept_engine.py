"""An engine that is slow to start and goes on from test to test."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from msgspec.structs import replace

from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.plan import Engine, StepPlan, StepResult


class KeptEngine:
    """Starts an engine once, and numbers the sequences of each test behind those of the tests before.

    All else is the engine's own. A test that stops it makes the next one start it again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._info: EngineInfo | None = None
        self._offset = self._highest = self._steps = 0
        self._open: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> EngineInfo:
        if self._info is None:
            self._info = await self._engine.start()
        return self._info

    async def stop(self) -> None:
        self._info = None
        self._open.clear()
        await self._engine.stop()

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        shift, self._steps = self._offset, self._steps + 1
        shifted = replace(
            plan,
            release=[seq_id + shift for seq_id in plan.release],
            admit=[replace(new, seq_id=new.seq_id + shift) for new in plan.admit],
            chunks=[replace(chunk, seq_id=chunk.seq_id + shift) for chunk in plan.chunks],
        )
        self._open.difference_update(shifted.release)
        self._open.update(new.seq_id for new in shifted.admit)
        self._highest = max(self._highest, *self._open, 0)
        return asyncio.ensure_future(self._numbered_back(self._engine.submit(shifted), shift))

    async def end_test(self) -> None:
        """Ends what the test has left."""
        if self._info is not None and self._open:
            self._engine.hurry()
            await self._engine.submit(StepPlan(step_id=self._steps + 1, release=sorted(self._open)))
        self._open.clear()
        self._offset = self._highest

    async def _numbered_back(self, result: Awaitable[StepResult], shift: int) -> StepResult:
        came = await result
        return replace(came, sampled=[replace(one, seq_id=one.seq_id - shift) for one in came.sampled])
