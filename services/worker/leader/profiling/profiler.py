"""Records this group for some seconds: engine steps, ranks and their ops, messages, turns of the event loop.

One profile at a time. Everything recorded has a bound, and what is beyond it is counted.
"""

import asyncio
import os
import time
from array import array
from contextlib import suppress
from typing import Protocol

from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.profiling.watched_bus import BusWatch
from services.worker.leader.step_log import StepRecord
from services.worker.orchestrator.tracing.rank_tracing import TracedRank
from shared.messages import GroupRecording, RecordedRank

OP_SPANS = 400_000  # of all ranks together
MAX_STEPS = 20_000
_RESTARTED = "its engine failed and was started again meanwhile; ops of the ranks before that are lost"
_GATHER_S = 0.25  # the rings of the step log hold some seconds

TICK_S = 0.002
LIMIT_NS = 2_000_000  # lateness that is recorded
MAX_ROUNDS = 5000


class LateRounds:
    """Records when the event loop was late while `watch` runs: a timer due each `TICK_S` is late then.

    Attributes:
        found: When the loop should have turned, and when it did, in nanoseconds of the monotonic clock, two
            numbers for each turn.
    """

    def __init__(self) -> None:
        self.found = array("q")

    async def watch(self) -> None:
        """Watches until it is cancelled."""
        while len(self.found) < 2 * MAX_ROUNDS:
            due_ns = time.monotonic_ns() + int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            if now_ns - due_ns > LIMIT_NS:
                self.found.extend((due_ns, now_ns))


class RankTracer(Protocol):
    """The ranks' clocks and recordings; see `RankTracing`."""

    def begin(self, seconds: float, max_spans: int) -> None:
        """Has all ranks record."""
        ...

    async def ping_all(self) -> None:
        """Measures the clocks of all ranks."""
        ...

    async def collect(self) -> list[TracedRank]:
        """Ends the recording and returns it."""
        ...


class Profiler:
    """Makes one recording after another.

    Args:
        tracer: Records the ranks; None if the engine cannot.
    """

    def __init__(
        self, context: LeaderContext, engine: EngineState, watch: BusWatch, tracer: RankTracer | None
    ) -> None:
        self._context = context
        self._engine = engine
        self._watch = watch
        self._tracer = tracer

    async def record(self, seconds: float, op_spans: int = 0) -> GroupRecording:
        """Records for that long.

        Args:
            op_spans: Ops that the ranks record together at most; 0: as many as is allowed.
        """
        tracer, rounds, rows = self._tracer, LateRounds(), _StepRows()
        world, start = max(1, self._engine.step_log.world), self._engine.step_log.start
        if tracer is not None:
            await tracer.ping_all()
            tracer.begin(seconds, min(op_spans or OP_SPANS, OP_SPANS) // world)
        watching = asyncio.create_task(rounds.watch(), name="late turns")
        self._watch.begin()
        began_ns = time.monotonic_ns()
        try:
            await self._gather_steps(rows, began_ns, began_ns + int(seconds * 1e9))
        finally:
            messages, ended_ns = self._watch.end(), time.monotonic_ns()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        ranks: list[TracedRank] = []
        if tracer is not None:  # not when the leader stops: ranks end a recording by themselves
            await tracer.ping_all()  # again, since clocks drift
            ranks = await tracer.collect()
        return GroupRecording(
            group=self._context.group,
            instance_id=self._context.instance_id,
            model=self._context.model,
            pid=os.getpid(),
            began_ns=began_ns,
            ended_ns=ended_ns,
            unix_ns=time.time_ns() - time.monotonic_ns(),
            steps=rows.steps.tobytes(),
            rank_steps=rows.rank_steps.tobytes(),
            messages=messages,
            late_turns=rounds.found.tobytes(),
            ranks=[recorded_rank(one) for one in ranks],
            left_out=self._watch.left_out + rows.left_out,
            problem=_RESTARTED if self._engine.step_log.start != start else "",
        )

    async def _gather_steps(self, rows: "_StepRows", began_ns: int, ends_ns: int) -> None:
        """Takes the steps out of the log while they are there."""
        log, since_ns = self._engine.step_log, began_ns
        while (now_ns := time.monotonic_ns()) < ends_ns:
            await asyncio.sleep(min(_GATHER_S, (ends_ns - now_ns) / 1e9))
            # ranks may be behind with the newest steps, which the next reading finds
            until_ns = time.monotonic_ns() - 20_000_000
            rows.add(log.steps_between(since_ns, until_ns, MAX_STEPS), since_ns, until_ns)
            since_ns = until_ns
            await asyncio.sleep(0)
        rows.add(log.steps_between(since_ns, ends_ns, MAX_STEPS), since_ns, ends_ns)


class _StepRows:
    """Numbers of steps, for `GroupRecording`."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.rank_steps = array("q")
        self.left_out = 0
        self._count = 0

    def add(self, records: list[StepRecord], since_ns: int, until_ns: int) -> None:
        """Adds those whose results came in that time, so that none is added twice."""
        for step, ranks in records:
            if not since_ns < step.result_ns <= until_ns:
                continue
            self._count += 1
            if self._count > MAX_STEPS:
                self.left_out += 1
                continue
            self.steps.extend(step)
            for one in ranks:
                times = one.begin_ns, one.end_ns, *one.parts, one.idle_ns, one.clock_error_ns
                self.rank_steps.extend((step.step_id, one.rank, *times))


def recorded_rank(one: TracedRank) -> RecordedRank:
    """Returns a rank's part of a recording."""
    return RecordedRank(
        rank=one.rank,
        pid=one.pid,
        host=one.host,
        offset_ns=None if one.clock is None else one.clock.offset_ns,
        error_ns=0 if one.clock is None else one.clock.error_ns,
        trace=one.trace,
        problem=one.problem,
    )
