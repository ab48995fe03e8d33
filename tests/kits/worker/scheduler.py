"""Drives a scheduler as the leader's loop does, with an engine that computes plans immediately."""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import UNNAMED, BlockNames
from services.worker.domain.scheduling.scheduler import Advance, Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Sampled, StepPlan, StepResult
from services.worker.rank_protocol.step_masks import StepMasks
from tests.kits.worker.options import scheduler_limits

Output = tuple[list[int], str]  # tokens and finish reason: `stop`, `length` or `error`


@dataclass
class Run:
    """Drives a scheduler as the leader's loop does, and checks it after every step.

    Attributes:
        supply: Gets the masks of a step before it is computed; None if no sequence has a grammar.
        results: Of the steps in flight; the plans of those that wait for masks.
    """

    scheduler: Scheduler
    compute: Callable[[StepPlan], StepResult]
    run_ahead: int
    outputs: dict[str, Output] = field(default_factory=dict)
    results: deque[StepResult | StepPlan] = field(default_factory=deque)
    plans: list[StepPlan] = field(default_factory=list)
    supply: Callable[[StepMasks], None] | None = None

    def submit(self) -> bool:
        plan = self.scheduler.plan()
        if plan.is_empty:
            return False
        assert sum(piece.num_tokens for piece in plan.chunks) <= self.scheduler.limits.token_budget
        assert len({piece.seq_id for piece in plan.chunks}) == len(plan.chunks)
        self.plans.append(plan)
        self.results.append(plan)
        self._compute_ready()
        self.scheduler.check_invariants()
        return True

    def book(self) -> None:
        result = self.results.popleft()
        assert isinstance(result, StepResult)
        advances = self.scheduler.apply(result)
        self._compute_ready()
        for advance in advances:
            sequence, reason = advance.sequence, advance.finish_reason
            if advance.sampled.error or reason:
                output = sequence.tokens[sequence.prompt_len :]
                self.outputs[sequence.request_id] = (output, reason or "error")
        self.scheduler.check_invariants()

    def _compute_ready(self) -> None:
        """Computes the steps in flight that have their masks, or need none."""
        given = {masks.step_id: masks for masks in self.scheduler.take_masks()}
        for index, plan in enumerate(self.results):
            if isinstance(plan, StepResult):
                continue
            if any(piece.masked for piece in plan.chunks):
                if plan.step_id not in given:
                    return
                assert self.supply is not None
                self.supply(given[plan.step_id])
            self.results[index] = self.compute(plan)

    def step(self) -> None:
        """Submits plans as far as the scheduler allows, and handles one result."""
        while len(self.results) <= self.run_ahead and self.submit():
            pass
        if self.results:
            self.book()

    def run_with_cancels(
        self,
        coming: list[Sequence],
        expected: Mapping[str, Output],
        chance: random.Random,
        *,
        cancelled_share: float,
        disturb: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs sequences that come, and are cancelled, at random; checks what each of them got."""
        known, cancelled = {sequence.request_id: sequence for sequence in coming}, set[str]()
        for _ in range(20_000):
            while coming and chance.random() < 0.4:
                self.scheduler.add(coming.pop(0))
            may_wait = len(self.results) <= self.run_ahead
            if self.results and (not may_wait or chance.random() < 0.3 or not self.submit()):
                self.book()
            elif not self.results:
                self.submit()
            if chance.random() < cancelled_share and (
                alive := self.scheduler.running + self.scheduler.waiting
            ):
                victim = chance.choice(alive)
                self.scheduler.end(victim)
                cancelled.add(victim.request_id)
                self.scheduler.check_invariants()
            disturb()
            if not coming and not self.scheduler.has_work and not self.results:
                break
        else:
            raise AssertionError("it does not come to an end")
        assert self.outputs.keys() | cancelled == expected.keys()
        assert self.outputs == {name: expected[name] for name in self.outputs}
        for name in cancelled:
            tokens = known[name].tokens[known[name].prompt_len :]
            assert tokens == expected[name][0][: len(tokens)]

    def finish(self) -> None:
        while self.scheduler.has_work or self.results:
            self.step()


def make(
    name: str, prompt: int, output: int, *, arrival: int = 0, priority: int = 0, deadline: float = 1e9
) -> Sequence:
    return Sequence(
        request_id=name,
        choice=0,
        tokens=list(range(100, 100 + prompt)),
        prompt_len=prompt,
        max_tokens=output,
        sampling=EngineSampling(),
        eos_ids=frozenset([EOS]),
        arrival=arrival,
        priority=priority,
        deadline=deadline,
    )


def compute(plan: StepPlan, token_id: int = 1) -> StepResult:
    sampled = [Sampled(seq_id=piece.seq_id, token_id=token_id) for piece in plan.chunks if piece.sample]
    return StepResult(step_id=plan.step_id, sampled=sampled)


def step(scheduler: Scheduler, token_id: int = 1) -> list[Advance]:
    plan = scheduler.plan()
    advances = scheduler.apply(compute(plan, token_id)) if plan.chunks or plan.release else []
    scheduler.check_invariants()
    return advances


EOS = 7


NAMES = BlockNames("fingerprint")


def build(
    blocks: int = 64,
    budget: int = 32,
    running: int = 16,
    waiting: int = 64,
    names: BlockNames = UNNAMED,
) -> Scheduler:
    return Scheduler(BlockManager(blocks), scheduler_limits(budget, running, waiting), names)
