"""The leader's loop without requests: the real scheduler and block manager drive an engine, and a clock runs.

It does per step what `services/worker/leader/engine_loop.py` does, less the text and the frames; what is made
of the times stands in `engine_row.py`.
"""

import time
from collections import deque
from collections.abc import Awaitable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from services.worker.domain.scheduling.block_manager import BlockManager, blocks_for
from services.worker.domain.scheduling.block_names import BlockNames
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits
from services.worker.domain.scheduling.write_behind import WriteBehind
from services.worker.rank_protocol.plan import BLOCK_SIZE, MAX_OUTSTANDING, Engine, EngineInfo, StepResult
from shared.messages import Sampling

TOKEN_BUDGET = 512  # the default of RYZ_TOKEN_BUDGET
_GREEDY = Sampling(temperature=0.0, ignore_eos=True)


class DriveError(Exception):
    """A run gave no figures; the text says why."""


@dataclass(slots=True)
class Run:
    """One batch, generated.

    prefill_s: from the start until the last prompt has its first token.
    decode_s, decode_tokens: from there until the first sequence is complete; all of them decode meanwhile.
    steps, step_s: the results of that time, and the seconds between their arrivals.
    tokens: what was generated, for each prompt.
    """

    prefill_s: float
    decode_s: float
    decode_tokens: int
    steps: list[StepResult]
    step_s: list[float]
    tokens: list[list[int]]


@dataclass(slots=True)
class _Clock:
    """When what happened; `arrivals` has every step with its time and its number of new tokens."""

    began: float
    first: dict[int, float] = field(default_factory=dict)
    ended: float = 0.0
    arrivals: list[tuple[float, int, StepResult]] = field(default_factory=list)


def kv_tokens(batch: int, length: int) -> int:
    """A KV cache, in tokens, that never runs short with that many sequences of that length."""
    return 2 * batch * (blocks_for(length) + 1) * BLOCK_SIZE


class Driver:
    """Runs batches on a started engine, one at a time.

    write_behind: enable it to have full blocks copied for the store.
    """

    def __init__(self, engine: Engine, info: EngineInfo, max_batch: int) -> None:
        self.write_behind = WriteBehind()  # switched off
        self._engine = engine
        # no limit to a step's time: prompts are measured alone, there is nobody whose pace they could spoil
        limits = SchedulerLimits(
            token_budget=max(TOKEN_BUDGET, max_batch), max_running=max_batch, max_waiting=max_batch
        )
        self._scheduler = Scheduler(
            BlockManager(info.num_blocks),
            limits,
            BlockNames(info.fingerprint, info.kv_format),
            write_behind=self.write_behind,
        )
        self._arrivals = 0

    async def run(self, prompts: Many[Many[int]], num_tokens: int) -> Run:
        """Generates `num_tokens` for each prompt, greedily and past every end-of-sequence token.

        Raises:
            EngineFailed: the engine is gone.
            DriveError: the sequences never decoded all together, or one of them could not go on.
        """
        sequences = []
        for prompt in prompts:
            self._arrivals += 1
            sequence = Sequence(str(self._arrivals), 0, list(prompt), len(prompt), num_tokens, _GREEDY)
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
        while scheduler.has_work or outstanding:
            while scheduler.has_work and len(outstanding) < MAX_OUTSTANDING:
                plan = scheduler.plan()
                if not plan.slices and not plan.release and not plan.store:
                    break
                outstanding.append(self._engine.submit(plan))
            if not outstanding:
                raise DriveError("the scheduler has work but plans none of it")
            result = await outstanding.popleft()
            advances = scheduler.apply(result)
            now = time.perf_counter()
            clock.arrivals.append((now, len(advances), result))
            for advance in advances:
                if advance.sampled.error:
                    raise DriveError(f"a sequence could not go on: {advance.sampled.error}")
                clock.first.setdefault(advance.sequence.arrival, now)
                if advance.finish_reason is not None and not clock.ended:
                    clock.ended = now


def _run_of(clock: _Clock, sequences: Many[Sequence]) -> Run:
    prefilled = max(clock.first.values())
    if clock.ended <= prefilled:
        raise DriveError(
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
    return Run(prefilled - clock.began, clock.ended - prefilled, count, steps, gaps, tokens)
