"""Runs batches on an engine as the leader does, without requests: the real scheduler and block manager.

A step does what `services/worker/leader/engine_loop.py` does, without text and frames. `engine/row.py` turns
the times into figures.
"""

import time
from collections import deque
from collections.abc import Awaitable
from collections.abc import Sequence as Many
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import numpy as np

from benchmarks.engine_plans import EnginePlan
from benchmarks.lib.measuring import BenchError
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.constraints.forced_tokens import force_first
from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits
from services.worker.leader.drafting.draft_rounds import DraftRounds
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING, EngineInfo
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine, StepResult
from services.worker.rank_protocol.run_config import Dtype, EngineRunConfig, Precision

TOKEN_BUDGET = 512  # the default of RYZ_TOKEN_BUDGET
_DTYPES: dict[Precision, Dtype] = {"fp32": "fp32", "bf16": "bf16"}
LOAD_S = 900.0
_STEP_S = 300.0
_GREEDY = EngineSampling(temperature=0.0, ignore_eos=True)


@dataclass(slots=True)
class Run:
    """One batch, generated.

    Attributes:
        prefill_s: From the start until the last prompt has its first token.
        decode_s: From there until the first sequence is complete; all of them decode meanwhile.
        decode_tokens: Tokens generated in that time.
        steps: Results of that time.
        step_s: Seconds between their arrivals.
        tokens: Generated tokens of each prompt.
        masks_s: Time in which the masks of grammars were made.
    """

    prefill_s: float
    decode_s: float
    decode_tokens: int
    steps: list[StepResult]
    step_s: list[float]
    tokens: list[list[int]]
    masks_s: float = 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second of decoding."""
        return self.decode_tokens / self.decode_s


@dataclass(slots=True)
class _Clock:
    """Times of one batch; `arrivals` has each step's time, number of new tokens and result."""

    began: float
    first: dict[int, float] = field(default_factory=dict)
    ended: float = 0.0
    masks_s: float = 0.0
    arrivals: list[tuple[float, int, StepResult]] = field(default_factory=list)


def kv_tokens(batch: int, length: int) -> int:
    """Return the size of a KV cache, in tokens, that never runs short with `batch` sequences of `length`."""
    return 2 * batch * (blocks_for(length) + 1) * BLOCK_SIZE


def rank_options(plan: EnginePlan, precision: Precision, world: int, threads: int) -> RankEngineOptions:
    """Return how the engine of a plan is started; on a GPU the precision is fp32 or bf16."""
    on_gpu = plan.device == "cuda"
    run = EngineRunConfig(
        model=str(plan.model),
        tensor_parallel=world,
        threads=threads,
        device=plan.device,
        # on a GPU the type decides, whatever the files hold
        dtype=_DTYPES[precision] if on_gpu else "auto",
        precision="auto" if on_gpu else precision,
        kernels=plan.kernels,
        kv_dtype=plan.kv_dtype,
        token_budget=max(plan.token_budget, *plan.batches),
        kv_cache_tokens=kv_tokens(max(8, *plan.batches), plan.prompt + plan.tokens),
        engine_start_timeout_s=LOAD_S,
        step_timeout_s=_STEP_S,
    )
    return RankEngineOptions(run=run)


def make_prompts(batch: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Return random prompts; different seeds share no prefix, so nothing comes from the prefix cache."""
    rng = np.random.default_rng([seed, batch, length])
    return [[int(token) for token in rng.integers(0, vocab_size, length)] for _ in range(batch)]


class Driver:
    """Runs batches on a started engine, one at a time.

    Attributes:
        write_behind: Off at first; enabled, it has full blocks copied for the store.
        speculation: Off unless there are draft tokens; its `most` may be changed between batches.
        drafts: Asks a draft model; None: there is none. It may be changed between batches.
    """

    def __init__(
        self,
        engine: Engine,
        info: EngineInfo,
        max_batch: int,
        draft_tokens: int = 0,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        self.write_behind = WriteBehind()
        self._engine = engine
        # no limit to a step's time: prompts are measured alone, so they delay no other decode
        limits = SchedulerLimits(
            token_budget=max(token_budget, max_batch),
            max_running=max_batch,
            max_waiting=max_batch,
            itl_target_s=0.0,
            tenant_share=1.0,
            draft_tokens=draft_tokens,
        )
        self._scheduler = Scheduler(
            BlockManager(info.num_blocks),
            limits,
            BlockNames(info.fingerprint, info.kv_format),
            write_behind=self.write_behind,
        )
        self.speculation = self._scheduler.speculation
        self.drafts: DraftRounds | None = None
        self._vocab_size = info.vocab_size
        self._arrivals = 0

    async def run_batch(
        self,
        prompts: Many[Many[int]],
        num_tokens: int,
        grammar: ConstraintFactory | None = None,
        sampling: EngineSampling = _GREEDY,
    ) -> Run:
        """Generate `num_tokens` for each prompt, past every end-of-sequence token.

        Args:
            prompts: Token ids.
            grammar: Of the answers, which it must not let end before; None: they are free.
            sampling: Of all of them; greedy if left out.

        Raises:
            EngineFailed: The engine is gone.
            BenchError: The sequences never decoded all together, or one of them could not go on.
        """
        sequences = []
        for prompt in prompts:
            self._arrivals += 1
            sequence = Sequence(str(self._arrivals), 0, list(prompt), len(prompt), num_tokens, sampling)
            if grammar is not None:
                sequence.constraint = grammar()
                sequence.append_run(force_first(sequence))
            sequence.enqueued_as(self._arrivals)
            sequences.append(sequence)
        clock = _Clock(time.perf_counter())
        for sequence in sequences:
            self._scheduler.add(sequence)
        await self._serve(clock)
        self._scheduler.check_invariants()
        return _run_of(clock, sequences)

    async def _serve(self, clock: _Clock) -> None:
        scheduler, outstanding = self._scheduler, deque[Awaitable[StepResult]]()
        scheduler.speculation.model_up = False
        while scheduler.has_work or outstanding:
            if self.drafts is not None and not outstanding:
                await self.drafts.guess(scheduler, self._vocab_size)
            while scheduler.has_work and len(outstanding) < MAX_OUTSTANDING:
                if outstanding and scheduler.waits_for_drafts:
                    break
                plan = scheduler.plan()
                if not plan.chunks and not plan.release and not plan.store:
                    break
                outstanding.append(self._engine.submit(plan))
                self._supply_masks(clock)
            if not outstanding:
                raise BenchError("the scheduler has work but plans none of it")
            result = await outstanding.popleft()
            advances = scheduler.apply(result)
            self._supply_masks(clock)
            now = time.perf_counter()
            clock.arrivals.append((now, len(advances), result))
            for advance in advances:
                if advance.sampled.error:
                    raise BenchError(f"a sequence could not go on: {advance.sampled.error}")
                clock.first.setdefault(advance.sequence.arrival, now)
                if advance.finish_reason is not None and not clock.ended:
                    clock.ended = now

    def _supply_masks(self, clock: _Clock) -> None:
        began = time.perf_counter()
        for masks in self._scheduler.take_masks():
            self._engine.supply_masks(masks)
            clock.masks_s += time.perf_counter() - began
            began = time.perf_counter()


def _run_of(clock: _Clock, sequences: Many[Sequence]) -> Run:
    prefilled = max(clock.first.values())
    if clock.ended <= prefilled:
        raise BenchError(
            f"the first of {len(sequences)} sequences was complete before the last had its first token; "
            "ask for more --tokens or a smaller batch"
        )
    steps, gaps, count, before = [], [], 0, prefilled
    for now, num_tokens, result in clock.arrivals:
        if prefilled < now <= clock.ended:
            steps.append(result)
            gaps.append(now - before)
            count += num_tokens
            before = now
    tokens = [sequence.tokens[sequence.prompt_len :] for sequence in sequences]
    return Run(prefilled - clock.began, clock.ended - prefilled, count, steps, gaps, tokens, clock.masks_s)


async def start_driver(
    stack: AsyncExitStack, options: RankEngineOptions, max_batch: int, draft_tokens: int = 0
) -> tuple[Driver, EngineInfo]:
    """Start an engine that is stopped with the stack.

    Raises:
        EngineFailed: A rank refused the model or did not start in time.
    """
    engine = RankEngine(options)
    stack.push_async_callback(engine.stop)
    info = await engine.start()
    return Driver(engine, info, max_batch, draft_tokens, options.run.token_budget), info
