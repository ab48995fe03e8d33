"""Runs sequences on any engine through the leader's scheduler, whether it computes steps or streams."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.generation.token_constraint import TokenConstraint
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Engine, Sampled, StepPlan, StepResult
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.options import scheduler_limits


class Ended(NamedTuple):
    """What a sequence has brought: its tokens as they were sampled, and why it ended; empty: it was ended."""

    sampled: list[Sampled]
    reason: str

    @property
    def tokens(self) -> list[int]:
        return [one.token_id for one in self.sampled if not one.error]

    @property
    def error(self) -> str:
        return self.sampled[-1].error if self.sampled else ""


class PortRun:
    """The sequences of one start of an engine.

    Args:
        info: What the engine said when it started.
        budget: Tokens of a step.

    Attributes:
        plans: All that were submitted.
    """

    def __init__(self, engine: Engine, info: EngineInfo, *, budget: int = 64) -> None:
        self.engine = engine
        self.info = info
        self.plans: list[StepPlan] = []
        self.scheduler = Scheduler(
            BlockManager(info.num_blocks),
            scheduler_limits(budget, min(16, info.max_running or 16), 64),
            BlockNames("f", sharing="off"),
            streams=info.streams,
        )
        self._came: dict[str, list[Sampled]] = {}
        self._reasons: dict[str, str] = {}
        self._number = 0

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        before: list[int] | None = None,
        eos_ids: frozenset[int] = frozenset(),
        choice: int = 0,
        tenant: str = "",
        constraint: TokenConstraint | None = None,
        form: DemandedForm | None = None,
        **sampling: Any,
    ) -> Sequence:
        """Queues a sequence; greedy, unless `sampling` says otherwise.

        Args:
            before: Tokens that another attempt has generated.
        """
        self._number += 1
        options: dict[str, Any] = {"temperature": 0.0} | sampling
        one = Sequence(
            request_id=f"r{self._number}",
            choice=choice,
            tenant=tenant,
            tokens=prompt + (before or []),
            prompt_len=len(prompt),
            max_tokens=max_tokens,
            sampling=EngineSampling(**options),
            eos_ids=eos_ids,
            constraint=constraint,
            form=form,
        )
        one.enqueued_as(self._number)
        self._came[one.request_id] = []
        self.scheduler.add(one)
        return one

    def came(self, one: Sequence) -> Ended:
        """What has come of a sequence."""
        return Ended(self._came[one.request_id], self._reasons.get(one.request_id, ""))

    async def step(self, *, hurried: bool = False) -> StepResult | None:
        """Plans and computes a step, and books it; None: there is nothing to do.

        Args:
            hurried: The leader has something to plan as soon as the step is submitted.
        """
        plan = self.scheduler.plan()
        if plan.is_empty:
            return None
        self.plans.append(plan)
        future = self.engine.submit(plan)
        for masks in self.scheduler.take_masks():
            self.engine.supply_masks(masks)
        if hurried:
            self.engine.hurry()
        async with asyncio.timeout(PATIENCE_S):
            result = await future
        self._book(result)
        await asyncio.sleep(0)  # a guest goes on, whose tokens may all be there
        return result

    async def until(self, condition: Callable[[], bool]) -> None:
        """Goes on until a condition holds, or nothing is left to do."""
        going_on = True
        while going_on and not condition():
            going_on = await self.step() is not None
        assert condition()

    async def finish(self) -> None:
        """Goes on until everything has ended and is released."""
        await self.until(lambda: not self.scheduler.has_work)

    async def generate(self, prompt: list[int], max_tokens: int, **options: Any) -> Ended:
        """Runs one sequence alone."""
        one = self.add(prompt, max_tokens, **options)
        await self.finish()
        return self.came(one)

    def _book(self, result: StepResult) -> None:
        advances = self.scheduler.apply(result)
        self.scheduler.check_invariants()
        for one in advances:
            self._came[one.sequence.request_id].append(one.sampled)
            if one.finish_reason or one.sampled.error:
                self._reasons[one.sequence.request_id] = one.finish_reason or "error"
