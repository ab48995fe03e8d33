"""Measures token times and times to first token under a mixed load, with and without a target.

Some sequences decode all the time, and a prompt comes every so often, on the real scheduler and real ranks.
What a sequence that decodes waits for its next token is the time between two steps, so a second's p99 is the
worst of its steps but for a few. The targets are measured in turns, each round with an engine of its own.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.engine.driver import make_prompts
from benchmarks.engine_plans import MixedPlan, model_name
from benchmarks.lib.measuring import BenchError, Progress, milliseconds, percentiles
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
from services.worker.rank_protocol.plan import BLOCK_SIZE, StepPlan, StepResult
from services.worker.rank_protocol.run_config import EngineRunConfig
from shared.host.cores_and_memory import usable_cores

_START_S = 900.0
_TOKEN_BUDGET, _RUNNING = 512, 64
_PROMPTS_HELD = 6  # of the prompts that the KV cache has room for
_TOKENS_S = 50  # of each stream; one that is faster begins again when its share of the KV cache is full
_STREAM_PROMPT = 32
_WARM_PROMPT = 512
_GREEDY = EngineSampling(temperature=0.0, ignore_eos=True)


@dataclass(slots=True)
class MixedRun:
    """Times of one round, in seconds.

    Attributes:
        gaps: Between two tokens of a stream, by the second in which they came.
        first: Of each prompt until its first token.
        came: Prompts that came.
        cut_steps: Steps that the target cut.
    """

    gaps: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: list[float] = field(default_factory=list)
    came: int = 0
    cut_steps: int = 0


class _MixedLoad:
    """One round on a started engine, which is to be stopped after it."""

    def __init__(self, plan: MixedPlan, engine: RankEngine, info: EngineInfo, target_s: float) -> None:
        self._plan, self._engine, self._vocab = plan, engine, info.vocab_size
        self._scheduler = Scheduler(
            BlockManager(info.num_blocks),
            SchedulerLimits(_TOKEN_BUDGET, _RUNNING + plan.streams, 4096, target_s, 1.0, 0),
            BlockNames(info.fingerprint, info.kv_format),
        )
        self._tokens = info.num_blocks * BLOCK_SIZE
        self._room = min(info.context_length - _STREAM_PROMPT, _stream_tokens(plan))
        self._arrivals = 0
        self._came = dict[int, float]()  # prompts without a first token, by arrival
        self._last = dict[int, float]()  # when the last token of a stream came, by arrival
        self.run = MixedRun()

    async def measure(self) -> MixedRun:
        """Let the streams begin, then measure for the seconds of the plan."""
        await self._use_all_blocks()
        for _ in range(self._plan.streams):
            self._add(_STREAM_PROMPT, self._room)
        outstanding = deque[tuple[int, Awaitable[StepResult]]]()
        began, last = 0.0, time.perf_counter()
        while True:
            now = time.perf_counter()
            if not began and len(self._last) == self._plan.streams:
                began = now
            if began and now > began + self._plan.seconds:
                break
            while began and self.run.came * self._plan.interval <= now - began:
                self._came[self._add(self._plan.prompt, 1)] = began + self.run.came * self._plan.interval
                self.run.came += 1
            self._submit(outstanding)
            if not outstanding:
                raise BenchError("the scheduler has work but plans none of it")
            result = await outstanding.popleft()[1]
            now = time.perf_counter()
            for advance in self._scheduler.apply(result, now - last):
                self._book(advance, now, began)
            last = now
        for _, step in outstanding:
            await step
        self.run.cut_steps = self._scheduler.throttle.take_cuts()[0]
        return self.run

    async def _use_all_blocks(self) -> None:
        """Has each block take memory, as on a server that has been running for some minutes."""
        for _ in range(-(-self._tokens // _WARM_PROMPT)):
            self._add(_WARM_PROMPT, 1)
        while self._scheduler.has_work:
            self._scheduler.apply(await self._engine.submit(self._scheduler.plan()))
        self._scheduler.throttle.take_cuts()

    def _submit(self, outstanding: deque[tuple[int, Awaitable[StepResult]]]) -> None:
        """Submits steps as the engine loop does: one behind another only if that one is short."""
        while len(outstanding) < MAX_OUTSTANDING:
            if outstanding and outstanding[-1][0] > RUN_AHEAD_TOKENS:
                return
            plan: StepPlan = self._scheduler.plan()
            if not plan.chunks and not plan.release:
                return
            tokens = sum(piece.num_tokens for piece in plan.chunks)
            outstanding.append((tokens, asyncio.ensure_future(self._engine.submit(plan))))

    def _add(self, prompt: int, tokens: int) -> int:
        self._arrivals += 1
        (ids,) = make_prompts(1, prompt, self._vocab, self._arrivals)
        sequence = Sequence(str(self._arrivals), 0, ids, prompt, tokens, _GREEDY)
        sequence.enqueued_as(self._arrivals)
        self._scheduler.add(sequence)
        return self._arrivals

    def _book(self, advance: Advance, now: float, began: float) -> None:
        if advance.sampled.error:
            raise BenchError(f"a sequence could not go on: {advance.sampled.error}")
        arrival = advance.sequence.arrival
        if arrival in self._came:
            self.run.first.append(now - self._came.pop(arrival))
            return
        if began and arrival in self._last:
            self.run.gaps[int(now - began)].append(now - self._last[arrival])
        self._last[arrival] = now
        if advance.finish_reason is not None:  # at the end of its room
            del self._last[arrival]
            self._add(_STREAM_PROMPT, self._room)


async def measure(plan: MixedPlan, progress: Progress) -> dict[str, Any]:
    """Measure all targets in turns.

    Raises:
        EngineFailed: The engine broke.
        BenchError: The figures would mean nothing.
    """
    runs: dict[int, list[MixedRun]] = {target: [] for target in plan.targets}
    for number in range(plan.rounds):
        for target in plan.targets:
            progress(f"round {number + 1}, {f'target {target} ms' if target else 'no target'}")
            runs[target].append(await _measure_round(plan, target / 1000))
    judged = next((target for target in plan.targets if target), 100)
    rows = [_row(target, found, (target or judged) / 1000) for target, found in runs.items()]
    return {
        "model": model_name(plan.model),
        "precision": plan.precision,
        "tp": plan.tensor_parallel,
        "threads": _threads(plan),
        "streams": plan.streams,
        "prompt": plan.prompt,
        "interval_s": plan.interval,
        "rows": rows,
    }


def _threads(plan: MixedPlan) -> int:
    return plan.threads or max(1, usable_cores() // plan.tensor_parallel)


def _stream_tokens(plan: MixedPlan) -> int:
    return max(1, int(plan.seconds * _TOKENS_S))


async def _measure_round(plan: MixedPlan, target_s: float) -> MixedRun:
    tokens = plan.streams * (_STREAM_PROMPT + _stream_tokens(plan)) + _PROMPTS_HELD * plan.prompt
    run = EngineRunConfig(
        model=str(plan.model),
        tensor_parallel=plan.tensor_parallel,
        threads=_threads(plan),
        precision=plan.precision,
        kv_cache_tokens=tokens,
        engine_start_timeout_s=_START_S,
    )
    engine = RankEngine(RankEngineOptions(run=run))
    try:
        info = await engine.start()
        return await _MixedLoad(plan, engine, info, target_s).measure()
    finally:
        await engine.stop()


def _row(target: int, runs: list[MixedRun], judged_s: float) -> dict[str, Any]:
    gaps = [gap for run in runs for found in run.gaps.values() for gap in found]
    seconds = [float(np.quantile(found, 0.99)) for run in runs for found in run.gaps.values()]
    first = [one for run in runs for one in run.first]
    if not gaps or not first:
        raise BenchError("no prompt had its first token in time; measure longer, or ask for shorter prompts")
    return {
        "target_ms": target,
        **percentiles(gaps, "itl", digits=1),
        "worst_second_p99_ms": milliseconds(max(seconds), 1),
        "judged_by_ms": milliseconds(judged_s, 1),
        "seconds_within": round(sum(one <= judged_s for one in seconds) / len(seconds), 4),
        **percentiles(first, "ttft", digits=1),
        "prompts": sum(run.came for run in runs),
        "answered": len(first),
        "cut_steps": sum(run.cut_steps for run in runs),
    }
