"""The step times page: shared memory in which each rank records its newest steps, for the leader to read.

A rank writes without a lock and without a system call; the leader reads only when it is asked. The region of
a rank is a header of counters that only grow, then a ring of slots. A slot is guarded by its first word: 0
while the slot is written, else the id of its step plus one, so a reader that was overtaken notices it.
Stores become visible in program order on x86-64; elsewhere the same word at the end of a slot counts too.
Times are nanoseconds of the host's monotonic clock, which all processes of a host share.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

SLOTS = 2048  # steps of a rank that are kept
KINDS = ("linears", "attention", "collectives", "sampling", "masks", "kv_copy")  # of a step's time
# upper bounds of the histogram of steps, in seconds; one more bucket takes what is longer
STEP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_WORD = 8
_SLOT = struct.Struct(f"=q2q{len(KINDS)}qqq")  # mark, begin, end, the kinds, idle, mark
SLOT_BYTES = 128  # two cache lines
_SLOT_WORDS = SLOT_BYTES // _WORD
# words of the header: the running step's mark and begin, then counters
_RUNNING, _SINCE, _STEPS, _STEP_NS, _KIND_NS = 0, 1, 2, 3, 4
_IDLE_NS = _KIND_NS + len(KINDS)
_BUCKETS = _IDLE_NS + 1
HEADER_BYTES = 256
_HEADER_WORDS = HEADER_BYTES // _WORD
REGION_BYTES = HEADER_BYTES + SLOTS * SLOT_BYTES  # of one rank
_REGION_WORDS = REGION_BYTES // _WORD
_NUMBERS = _BUCKETS + len(STEP_BUCKETS_S) + 1 - _STEPS
_BOUNDS_NS = tuple(round(bound * 1e9) for bound in STEP_BUCKETS_S)

if _SLOT.size > SLOT_BYTES or _BUCKETS + len(STEP_BUCKETS_S) + 1 > _HEADER_WORDS:
    raise AssertionError("a slot or a header of the step times page is larger than its place")


class PartsOfStep(NamedTuple):
    """Nanoseconds of a step by kind, in the order of `KINDS`; 0 where a backend does not measure parts."""

    linears: int = 0
    attention: int = 0
    collectives: int = 0
    sampling: int = 0
    masks: int = 0
    kv_copy: int = 0


NO_PARTS = PartsOfStep()


class RankStep(NamedTuple):
    """One step on one rank.

    Attributes:
        begin_ns: When the rank took the plan, by the leader's monotonic clock.
        end_ns: When it had computed it.
        parts: What the time in between was spent on; the rest is bookkeeping and operations on rows.
        idle_ns: How long it had waited for the plan.
        clock_error_ns: By how much its two times may be wrong; 0 on the leader's host.
    """

    rank: int
    begin_ns: int
    end_ns: int
    parts: PartsOfStep
    idle_ns: int = 0
    clock_error_ns: int = 0


class RankTotals(NamedTuple):
    """The counters of a rank since it began.

    Attributes:
        parts: By kind.
        idle_ns: Time that it waited for plans.
        buckets: Steps by duration: one count for each of `STEP_BUCKETS_S`, and the longer ones.
    """

    steps: int
    step_ns: int
    parts: PartsOfStep
    idle_ns: int
    buckets: tuple[int, ...]

    def flat(self) -> list[int]:
        """Return all numbers, one after another."""
        return [self.steps, self.step_ns, *self.parts, self.idle_ns, *self.buckets]


class RunningStep(NamedTuple):
    """The step that a rank computes now, and since when."""

    step_id: int
    since_ns: int


def times_bytes(world: int) -> int:
    """Return the size of the page for `world` ranks, in bytes."""
    return REGION_BYTES * world


class StepTimesWriter:
    """A rank's region of the page.

    Args:
        page: Of `times_bytes` bytes for at least this rank.
    """

    def __init__(self, page: memoryview, rank: int) -> None:
        self._bytes = page[rank * REGION_BYTES : (rank + 1) * REGION_BYTES]
        self._words = self._bytes.cast("q")

    def begin_step(self, step_id: int, begin_ns: int) -> None:
        """Records that a step begins."""
        self._words[_SINCE] = begin_ns
        self._words[_RUNNING] = step_id + 1

    def count_step(self, begin_ns: int, end_ns: int, parts: PartsOfStep, idle_ns: int) -> None:
        """Adds a step that is done to the counters."""
        words = self._words
        words[_STEPS] += 1
        words[_STEP_NS] += end_ns - begin_ns
        for index, value in enumerate(parts, _KIND_NS):
            if value:
                words[index] += value
        words[_IDLE_NS] += idle_ns
        words[_BUCKETS + bisect_left(_BOUNDS_NS, end_ns - begin_ns)] += 1

    def write_step(self, step_id: int, begin_ns: int, end_ns: int, parts: PartsOfStep, idle_ns: int) -> None:
        """Records a step that is done."""
        slot, mark = step_id % SLOTS, step_id + 1
        first = _HEADER_WORDS + slot * _SLOT_WORDS
        self._words[first] = 0
        at = HEADER_BYTES + slot * SLOT_BYTES
        _SLOT.pack_into(self._bytes, at, 0, begin_ns, end_ns, *parts, idle_ns, mark)
        self._words[first] = mark
        self._words[_RUNNING] = 0

    def write_totals(self, numbers: Sequence[int]) -> None:
        """Replaces the counters by `RankTotals.flat` of a rank of another host."""
        for index, value in enumerate(numbers[:_NUMBERS], _STEPS):
            self._words[index] = value


class StepTimes:
    """Reads the page.

    Args:
        page: Of `times_bytes(world)` bytes.
        world: Number of ranks.

    Attributes:
        clock_errors_ns: Of ranks on other hosts, see `RankStep`.

    Raises:
        ValueError: The page has another size.
    """

    def __init__(self, page: memoryview, world: int) -> None:
        if page.nbytes < times_bytes(world):
            raise ValueError(f"a step times page of {page.nbytes} bytes is too small for {world} ranks")
        self.world = world
        self._page = page
        self._words = page.cast("q")
        self.clock_errors_ns: dict[int, int] = {}

    def read_step(self, rank: int, step_id: int) -> RankStep | None:
        """Return a rank's record of a step; None if the rank has not done it, or has written over it."""
        slot, mark = step_id % SLOTS, step_id + 1
        first = rank * _REGION_WORDS + _HEADER_WORDS + slot * _SLOT_WORDS
        if self._words[first] != mark:
            return None
        at = first * _WORD
        _, begin_ns, end_ns, *parts, idle_ns, last = _SLOT.unpack_from(self._page, at)
        if last != mark or self._words[first] != mark:
            return None  # overtaken
        error_ns = self.clock_errors_ns.get(rank, 0)
        return RankStep(rank, begin_ns, end_ns, PartsOfStep(*parts), idle_ns, error_ns)

    def read_step_of_all(self, step_id: int) -> list[RankStep]:
        """Return the records of a step, of the ranks that have it."""
        found = (self.read_step(rank, step_id) for rank in range(self.world))
        return [one for one in found if one is not None]

    def read_totals(self, rank: int) -> RankTotals:
        """Return a rank's counters; each is exact, though a step may be in some of them only."""
        first = rank * _REGION_WORDS
        words = self._words[first : first + _HEADER_WORDS].tolist()
        end = _BUCKETS + len(STEP_BUCKETS_S) + 1
        parts = PartsOfStep(*words[_KIND_NS:_IDLE_NS])
        return RankTotals(words[_STEPS], words[_STEP_NS], parts, words[_IDLE_NS], tuple(words[_BUCKETS:end]))

    def detached(self) -> "StepTimes":
        """Return what ranks that have ended left behind, without their shared memory."""
        copy = StepTimes(memoryview(bytes(self._page)), self.world)
        copy.clock_errors_ns = self.clock_errors_ns
        return copy

    def writer(self, rank: int) -> StepTimesWriter:
        """Return the writer of a rank that does not share the page."""
        return StepTimesWriter(self._page, rank)

    def read_running(self, rank: int) -> RunningStep | None:
        """Return the step that a rank computes now; None if it waits for a plan."""
        first = rank * _REGION_WORDS
        mark, since_ns = self._words[first + _RUNNING], self._words[first + _SINCE]
        return RunningStep(mark - 1, since_ns) if mark else None


def private_times(world: int) -> tuple[StepTimes, list[StepTimesWriter]]:
    """Return reader and writers of a page that is memory of this process alone."""
    page = memoryview(bytearray(times_bytes(world)))
    return StepTimes(page, world), [StepTimesWriter(page, rank) for rank in range(world)]


def by_kind(totals: RankTotals) -> dict[str, int]:
    """Return nanoseconds by kind, which sum to the rank's time from its first plan to its last step."""
    spent = dict(zip(KINDS, totals.parts, strict=True))
    other_ns = max(0, totals.step_ns - sum(totals.parts))
    return {**spent, "other": other_ns, "idle": totals.idle_ns}
