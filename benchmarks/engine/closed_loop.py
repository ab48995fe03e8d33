"""Measures a closed loop of whole requests, against what their prompts and their tokens cost alone.

So many requests run at once, and the next one comes when one has ended. Alone means: the same prompts with
one token each, and decode steps of as many sequences as run at once, without a prompt beside them. What both
take in sum is the time that the loop would take if a step with prompts cost what its parts cost.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.engine.closed_loop_plan import ClosedLoopPlan
from benchmarks.engine.driver import make_prompts
from benchmarks.engine_plans import model_name
from benchmarks.lib.measuring import BenchError, Progress, percentiles
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.scheduling.scheduler import Advance, Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits
from services.worker.leader.engine_loop import RUN_AHEAD_TOKENS
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING, EngineInfo
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE, StepResult
from services.worker.rank_protocol.run_config import EngineRunConfig
from shared.host.cores_and_memory import usable_cores

_START_S = 900.0
_TOKEN_BUDGET = 512
_GREEDY = EngineSampling(temperature=0.0, ignore_eos=True)


@dataclass(slots=True)
class LoopTimes:
    """Times of one loop, in seconds.

    Attributes:
        seconds: From the first request to the end of the last.
        first: Of each request until its first token.
        gaps: Between two tokens of a request.
        decode_steps: Steps that computed nothing but one token of each of the sequences that run at once.
    """

    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    decode_steps: list[float] = field(default_factory=list)


class _Loops:
    """Runs one loop after the other on a started engine, which is to be stopped after them."""

    def __init__(self, plan: ClosedLoopPlan, engine: RankEngine, info: EngineInfo, target_s: float) -> None:
        self._plan, self._engine, self._vocab = plan, engine, info.vocab_size
        self._scheduler = Scheduler(
            BlockManager(info.num_blocks),
            SchedulerLimits(_TOKEN_BUDGET, 2 * plan.at_once, 4096, target_s, 1.0, 0),
            BlockNames(info.fingerprint, info.kv_format),
        )
        self._arrivals = 0
        self._came = dict[int, float]()  # requests without a first token, by arrival
        self._last = dict[int, float]()  # when the last token of a request came, by arrival

    async def run(self, requests: int, tokens: int) -> LoopTimes:
        """Run so many requests of so many tokens each, `at_once` of the plan together."""
        times, left, began = LoopTimes(), requests, time.perf_counter()
        outstanding = deque[tuple[int, bool, Awaitable[StepResult]]]()
        last = began
        while left or self._came or self._last:
            while left and len(self._came) + len(self._last) < self._plan.at_once:
                self._add(tokens)
                left -= 1
            self._submit(outstanding)
            if not outstanding:
                raise BenchError("the scheduler has work but plans none of it")
            _, decodes, step = outstanding.popleft()
            result, now = await step, time.perf_counter()
            for advance in self._scheduler.apply(result, now - last):
                self._book(advance, times, now)
            if decodes:
                times.decode_steps.append(now - last)
            last = now
        times.seconds = last - began
        for _, _, step in outstanding:
            self._scheduler.apply(await step)
        return times

    def _submit(self, outstanding: deque[tuple[int, bool, Awaitable[StepResult]]]) -> None:
        """Submits steps as the engine loop does: one behind another only if that one is short."""
        while len(outstanding) < MAX_OUTSTANDING and not (
            outstanding and outstanding[-1][0] > RUN_AHEAD_TOKENS
        ):
            plan = self._scheduler.plan()
            if not plan.chunks and not plan.release:
                return
            tokens = sum(chunk.num_tokens for chunk in plan.chunks)
            decodes = tokens == len(plan.chunks) == self._plan.at_once
            outstanding.append((tokens, decodes, asyncio.ensure_future(self._engine.submit(plan))))

    def _add(self, tokens: int) -> None:
        self._arrivals += 1
        (ids,) = make_prompts(1, self._plan.prompt, self._vocab, self._arrivals)
        sequence = Sequence(str(self._arrivals), 0, ids, self._plan.prompt, tokens, _GREEDY)
        sequence.enqueued_as(self._arrivals)
        self._scheduler.add(sequence)
        self._came[self._arrivals] = time.perf_counter()

    def _book(self, advance: Advance, times: LoopTimes, now: float) -> None:
        if advance.sampled.error:
            raise BenchError(f"a sequence could not go on: {advance.sampled.error}")
        arrival = advance.sequence.arrival
        if arrival in self._came:
            times.first.append(now - self._came.pop(arrival))
        else:
            times.gaps.append(now - self._last[arrival])
        self._last[arrival] = now
        if advance.finish_reason is not None:
            del self._last[arrival]


async def measure(plan: ClosedLoopPlan, progress: Progress) -> dict[str, Any]:
    """Measure all targets in turns; each round has engines of its own.

    Raises:
        EngineFailed: The engine broke.
        BenchError: The figures would mean nothing.
    """
    rounds: dict[int, list[dict[str, float]]] = {target: [] for target in plan.targets}
    for number in range(plan.rounds):
        for target in plan.targets:
            progress(f"round {number + 1}, {f'target {target} ms' if target else 'no target'}")
            rounds[target].append(await _measure_round(plan, target / 1000))
    rows = [
        {"target_ms": target} | {name: round(median(one[name] for one in found), 3) for name in found[0]}
        for target, found in rounds.items()
    ]
    return {
        "model": model_name(plan.model),
        "precision": plan.precision,
        "tp": plan.tensor_parallel,
        "threads": _threads(plan),
        "requests": plan.requests,
        "at_once": plan.at_once,
        "prompt": plan.prompt,
        "tokens": plan.tokens,
        "rows": rows,
    }


def _threads(plan: ClosedLoopPlan) -> int:
    return plan.threads or max(1, usable_cores() // plan.tensor_parallel)


async def _measure_round(plan: ClosedLoopPlan, target_s: float) -> dict[str, float]:
    async with _started(plan, 0.0) as alone:  # without a target all sequences decode before the first ends
        prompts = await alone.run(plan.at_once, 1)
        tokens = await alone.run(plan.at_once, plan.tokens)
    async with _started(plan, target_s) as loops:
        whole = await loops.run(plan.requests, plan.tokens)
    if not tokens.decode_steps:
        raise BenchError("no step had tokens of all sequences and nothing else; ask for more tokens")
    return row(plan, prompts.seconds, median(tokens.decode_steps), whole)


@asynccontextmanager
async def _started(plan: ClosedLoopPlan, target_s: float) -> AsyncIterator[_Loops]:
    """An engine for some loops, each of whose blocks has taken memory, as on one that has run for a while."""
    run = EngineRunConfig(
        model=str(plan.model),
        tensor_parallel=plan.tensor_parallel,
        threads=_threads(plan),
        precision=plan.precision,
        kv_cache_tokens=(plan.at_once + 1) * (plan.prompt + plan.tokens + 2 * BLOCK_SIZE),
        engine_start_timeout_s=_START_S,
    )
    engine = RankEngine(RankEngineOptions(run=run))
    try:
        loops = _Loops(plan, engine, await engine.start(), target_s)
        await loops.run(plan.at_once, 2)
        yield loops
    finally:
        await engine.stop()


def row(plan: ClosedLoopPlan, prompts_s: float, decode_step_s: float, whole: LoopTimes) -> dict[str, float]:
    """Return the figures of a round.

    Args:
        plan: Its sizes.
        prompts_s: Seconds for the prompts of `at_once` requests, alone.
        decode_step_s: Seconds of a step with one token for each of as many sequences, alone.
        whole: The loop of all requests.
    """
    alone_s = plan.requests / plan.at_once * (prompts_s + (plan.tokens - 1) * decode_step_s)
    generated = plan.requests * plan.tokens
    return {
        "tokens_per_s": generated / whole.seconds,
        "sum_tokens_per_s": generated / alone_s,
        "share_of_sum": alone_s / whole.seconds,
        "prefill_tokens_per_s": plan.at_once * plan.prompt / prompts_s,
        "decode_tokens_per_s": plan.at_once / decode_step_s,
        **percentiles(whole.first, "ttft", digits=1),
        **percentiles(whole.gaps, "itl", digits=1),
    }
