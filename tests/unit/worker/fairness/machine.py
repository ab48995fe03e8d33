"""A scheduler of several parties in virtual time, and what each of them is served."""

from collections import Counter
from collections.abc import Callable

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import UNNAMED, BlockNames
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import StepPlan, StepResult
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import compute, make

FIXED_S, TOKEN_S, ROW_S = 0.004, 0.0005, 0.001  # of a step, a token of a prompt, a row that decodes
BUDGET = 128


class Shared:
    """Computes the plans of a scheduler, in a time of its own.

    Attributes:
        served: Tokens of prompts and decoded tokens of each party.
        waits: Seconds to the first token of each request that ended.
    """

    def __init__(
        self,
        *,
        running: int = 16,
        blocks: int = 4096,
        names: BlockNames = UNNAMED,
        target_s: float = 0.05,
        share: float = 1.0,
    ) -> None:
        self.now = 0.0
        limits = scheduler_limits(BUDGET, running, 4096, target_s, tenant_share=share)
        self.scheduler = Scheduler(BlockManager(blocks), limits, names, clock=lambda: self.now)
        self.arrivals = 0
        self.served: dict[str, Counter[str]] = {}
        self.history: list[tuple[float, dict[str, float]]] = []
        self.waits: dict[str, float] = {}
        self.arrived: dict[str, float] = {}
        self._of_seq: dict[int, Sequence] = {}

    def add(
        self,
        party: str,
        prompt: int = 64,
        output: int = 8,
        *,
        weight: float = 1.0,
        priority: int = 0,
        tokens: list[int] | None = None,
    ) -> Sequence:
        self.arrivals += 1
        sequence = make(f"{party}{self.arrivals}", prompt, output, arrival=self.arrivals, priority=priority)
        if tokens is not None:
            sequence.tokens, sequence.prompt_len = list(tokens), len(tokens)
        sequence.tenant = sequence.party = party
        sequence.weight = weight
        self.scheduler.add(sequence)
        self.arrived[sequence.request_id] = self.now
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        for sequence in self.scheduler.running:
            self._of_seq[sequence.seq_id] = sequence
        rows = tokens = 0
        for chunk in plan.chunks:
            owner = self._of_seq[chunk.seq_id]
            counts = self.served.setdefault(owner.party, Counter())
            if chunk.num_tokens > 1:
                tokens += chunk.num_tokens
                counts["prompt"] += chunk.num_tokens
            else:
                rows += 1
                counts["decode"] += 1
        step_s = FIXED_S + TOKEN_S * tokens + ROW_S * rows
        self.now += step_s
        result = compute(plan)
        advances = self.scheduler.apply(
            StepResult(step_id=result.step_id, sampled=result.sampled, compute_s=step_s), step_s
        )
        for advance in advances:
            one = advance.sequence
            self.waits.setdefault(one.request_id, self.now - self.arrived[one.request_id])
            if advance.finish_reason:
                self.scheduler.end(one)
        self.scheduler.check_invariants()
        return plan

    def run_for(self, seconds: float, feed: Callable[[], None] = lambda: None) -> None:
        end = self.now + seconds
        while self.now < end:
            feed()
            self.step()
            self.history.append((self.now, {party: self.weighted(party) for party in self.served}))

    def weighted(self, party: str) -> float:
        """What a party was served, in tokens of prompts, at the machine's own costs."""
        counts = self.served.get(party, Counter())
        return counts["prompt"] + counts["decode"] * ROW_S / TOKEN_S

    def keep(self, party: str, count: int, prompt: int = 64, output: int = 8, **given: float) -> None:
        """Adds requests of a party until it has so many."""
        queues = self.scheduler.queues
        has = sum(one.party == party for one in queues.waiting + queues.running)
        for _ in range(count - has):
            self.add(party, prompt, output, weight=given.get("weight", 1.0))
