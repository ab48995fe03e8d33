"""The newest engine steps of this leader: when each was planned, sent and done, and what ranks spent on it.

The engine loop adds a row of numbers for each step; the times of the ranks lie in their shared memory and are
read when steps are asked for. The metrics, traces of requests, and `ryz profile` read it.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.step_times import NO_PARTS, PartsOfStep, RankStep, RankTotals, StepTimes

CAPACITY = 4096  # steps; at a millisecond each, four seconds
MAX_STEPS = 1024  # in one answer, unless the caller sets another bound


class LoggedStep(NamedTuple):
    """One engine step as the leader saw it; times are nanoseconds of its monotonic clock.

    Attributes:
        start: Which start of the engine it belongs to; step ids begin again with each.
        step_id: Id of the plan.
        planned_ns: When planning began.
        submitted_ns: When the plan was sent to all ranks.
        result_ns: When the loop had the result.
        booked_ns: When its tokens were given to their requests; 0: they are being given now.
        decode_tokens: Tokens of chunks of one token that is sampled.
        prefill_tokens: All others.
        sequences: Chunks of the plan.
        ready_ns: When the plan was ready to be sent.
    """

    start: int
    step_id: int
    planned_ns: int
    submitted_ns: int
    result_ns: int
    booked_ns: int
    decode_tokens: int
    prefill_tokens: int
    sequences: int
    ready_ns: int = 0


_PLANNED, _RESULT, _BOOKED = (
    LoggedStep._fields.index(name) for name in ("planned_ns", "result_ns", "booked_ns")
)


class StepRecord(NamedTuple):
    """A step with what the ranks recorded of it; `ranks` is empty if they have written over it."""

    step: LoggedStep
    ranks: list[RankStep]


class StepLog:
    """A ring of steps. For one event loop.

    Args:
        capacity: How many steps are kept.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.start = 0
        self._rows: deque[list[int]] = deque(maxlen=capacity)  # the fields of a `LoggedStep` each
        self._times: dict[int, StepTimes] = {}  # of this start and the one before it
        self._earlier: dict[int, RankTotals] = {}  # sums over the starts before this one, by rank

    def begin_start(self, times: StepTimes | None) -> None:
        """Record that the engine has started; the ranks of the start before have ended.

        Args:
            times: What its ranks record; None if they record nothing.
        """
        now = self._times.get(self.start)
        if now is not None:
            for rank in range(now.world):
                self._earlier[rank] = self.totals(rank)
            self._times[self.start] = now.detached()  # a mapping would hold a descriptor
        self.start += 1
        if times is not None:
            self._times[self.start] = times
        for old in [start for start in self._times if start < self.start - 1]:
            del self._times[old]

    def add(
        self,
        step_id: int,
        moments_ns: tuple[int, int, int, int],
        decode_tokens: int,
        prefill_tokens: int,
        sequences: int,
    ) -> None:
        """Add a step whose result is there; `note_booked` follows.

        Args:
            step_id: Id of the plan.
            moments_ns: When planning began, the plan was ready, it was submitted, and its result came.
            decode_tokens: See `LoggedStep`.
            prefill_tokens: See `LoggedStep`.
            sequences: See `LoggedStep`.
        """
        planned, ready, submitted, result = moments_ns
        counts = decode_tokens, prefill_tokens, sequences
        self._rows.append([self.start, step_id, planned, submitted, result, 0, *counts, ready])

    def note_booked(self, now_ns: int) -> None:
        """Note that the tokens of the step added last were given to their requests."""
        self._rows[-1][_BOOKED] = now_ns

    @property
    def times(self) -> StepTimes | None:
        """The page of the ranks that run now; None if there is none."""
        return self._times.get(self.start)

    @property
    def world(self) -> int:
        """Number of ranks that record their times."""
        return 0 if self.times is None else self.times.world

    def steps_between(self, begin_ns: int, end_ns: int, limit: int = MAX_STEPS) -> list[StepRecord]:
        """Return the steps that ran at some moment from `begin_ns` to `end_ns`, in their order.

        Args:
            begin_ns: Of the leader's monotonic clock (`time.monotonic_ns`).
            end_ns: The same.
            limit: The last so many of them.
        """
        found: list[LoggedStep] = []
        for row in reversed(self._rows):
            if row[_RESULT] < begin_ns or len(found) == limit:
                break
            if row[_PLANNED] <= end_ns:
                found.append(LoggedStep(*row))
        return [StepRecord(step, self._ranks_of(step)) for step in reversed(found)]

    def totals(self, rank: int) -> RankTotals:
        """Return a rank's counters over all starts of the engine."""
        times, before = self.times, self._earlier.get(rank)
        if times is None or rank >= times.world:
            return before or _NOTHING
        now = times.read_totals(rank)
        return now if before is None else _sum(before, now)

    def _ranks_of(self, step: LoggedStep) -> list[RankStep]:
        times = self._times.get(step.start)
        return [] if times is None else times.read_step_of_all(step.step_id)


def count_tokens(plan: StepPlan) -> tuple[int, int]:
    """Return the decode tokens and the prefill tokens of a plan."""
    sizes = [1 if piece.follow else len(piece.token_ids) for piece in plan.chunks]
    total = sum(sizes)
    if total == len(sizes):
        return total, 0  # mostly; a prompt of one token, or the last one of a prompt, may be among them
    pieces = zip(sizes, plan.chunks, strict=True)
    decode = sum(size for size, piece in pieces if size - piece.drafts == 1 and piece.sample)
    return decode, total - decode


def count_arrived(plan: StepPlan, result: StepResult) -> tuple[int, int]:
    """Return the decode tokens and the prefill tokens that a step brought (`EngineInfo.streams`).

    The last token of a chunk that has brought none is computed again.
    """
    arrived = {one.seq_id for one in result.sampled}
    decode = prefill = 0
    for chunk in plan.chunks:
        is_late = chunk.sample and chunk.seq_id not in arrived
        if chunk.num_tokens == 1 and chunk.sample:
            decode += not is_late
        else:
            prefill += chunk.num_tokens - is_late
    return decode, prefill


_NOTHING = RankTotals(0, 0, NO_PARTS, 0, ())


def _sum(one: RankTotals, other: RankTotals) -> RankTotals:
    return RankTotals(
        one.steps + other.steps,
        one.step_ns + other.step_ns,
        PartsOfStep(*_each(one.parts, other.parts)),
        one.idle_ns + other.idle_ns,
        tuple(_each(one.buckets, other.buckets)) if one.buckets and other.buckets else other.buckets,
    )


def _each(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [left + right for left, right in zip(one, other, strict=True)]
