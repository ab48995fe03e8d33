"""Time limits on ranks: of a step and of a start, counted in time that the processes could use.

Pure. Waits for a core or a disk do not count, so that a busy machine is not mistaken for a hung rank. A
process that wanted a core and got none, or that a disk served, may have been about to make progress. One that
is stopped, sleeps, is blocked, or uses its core without progress has no such excuse.

Steps of one token and of a long prefill chunk differ by orders of magnitude, and so do models. One limit for
all steps would give up on working ranks or wait minutes for hung ones, so it grows with the tokens, at the
measured pace.
"""

from collections.abc import Mapping, Sequence

from services.worker.orchestrator.process_readings import CpuCounts, ProcessReading
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import STRETCH

_MOST_STOPPED_S = 1.0  # counted at once of a process that was seen stopped twice
Readings = tuple[ProcessReading | None, ProcessReading | None]  # at the beginning and at the end of a time


def usable_s(readings: Readings, passed_s: float) -> float:
    """Return how much of the time between two readings counts against a process, in seconds.

    Of a core that it has for a share of the time, that share of its work counts: a process that is switched
    out most of the time also computes slower when it runs, since the others use its caches and its memory.

    Args:
        readings: Of the process; without one of them all of the time counts.
        passed_s: The time, without that in which the caller itself was late.
    """
    before, after = readings
    if before is None or after is None or after.at_s <= before.at_s:
        return passed_s
    if _is_stopped(readings):  # that the caller was late is no excuse
        return min(max(after.at_s - before.at_s, passed_s), _MOST_STOPPED_S)
    if after.pages_read > before.pages_read:
        return 0.0
    share = 1.0 - waited_s(before, after) / (after.at_s - before.at_s)
    return passed_s * share * share


def shared_usable_s(readings: Sequence[Readings], passed_s: float) -> float:
    """Return how much of a time counts against processes of which one, unknown which, holds the others up.

    A stopped one is it. Else all of the time for which any of them waited for a core or a disk is taken off.
    """
    stopped = [usable_s(one, passed_s) for one in readings if _is_stopped(one)]
    if stopped:
        return max(stopped)
    return min((usable_s(one, passed_s) for one in readings), default=passed_s)


def waited_s(before: ProcessReading, after: ProcessReading) -> float:
    """Return for how many seconds a process waited for a core: the thread that waited longest counts.

    The threads of a rank compute a step together, so the one that waits holds the others up.
    """
    elapsed_s, longest_s = after.at_s - before.at_s, 0.0
    for tid, now in after.threads.items():
        then = before.threads.get(tid)
        if then is None:
            continue
        waits_s = (now.wait_ns - then.wait_ns) / 1e9
        if then.state == now.state == "R":
            # a wait that lasts is not counted yet, and neither is time that a hypervisor took away
            waits_s = max(waits_s, elapsed_s - (now.run_ns - then.run_ns) / 1e9)
        longest_s = max(longest_s, waits_s)
    return min(longest_s, elapsed_s)


def unstarved_s(
    compute_s: float,
    before: Sequence[CpuCounts],
    after: Sequence[CpuCounts],
) -> float:
    """Return what a step would have taken without waits for a core, in seconds.

    Args:
        compute_s: What it took.
        before: Counts of each rank when it began.
        after: The same when it was done.
    """
    ran_ns = waited_ns = 0
    for then, now in zip(before, after, strict=True):
        for tid in then.keys() & now.keys():
            ran_ns = max(ran_ns, now[tid][0] - then[tid][0])
            waited_ns = max(waited_ns, now[tid][1] - then[tid][1])
    return max(compute_s - waited_ns / 1e9, min(ran_ns / 1e9, compute_s))


def _is_stopped(readings: Readings) -> bool:
    before, after = readings
    return before is not None and after is not None and before.is_stopped and after.is_stopped


_INTERVAL_S = 0.5


class UsableLimit:
    """Counts the time of one wait, without the time for which processes waited for a core or a disk.

    Args:
        limit_s: Counted time after which they are late; in all, at most `STRETCH` times as much passes.
        now: When the wait began.

    Attributes:
        interval_s: Seconds between two checks.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        self.interval_s = min(_INTERVAL_S, limit_s / 5)
        self._limit_s = limit_s
        self._checked_at = now
        self._counted_s = self._passed_s = 0.0
        self._readings: Mapping[int, ProcessReading | None] = {}

    def is_late(self, now: float, readings: Mapping[int, ProcessReading | None]) -> bool:
        """Return True if the limit has passed; to be called every `interval_s`.

        Args:
            now: In seconds, on the same clock as when the wait began.
            readings: The counts of each process that is waited for, by process id; None: it is gone.
        """
        passed_s = min(now - self._checked_at, 2 * self.interval_s)
        before, self._readings, self._checked_at = self._readings, readings, now
        counted_s = shared_usable_s([(before.get(key), read) for key, read in readings.items()], passed_s)
        self._counted_s += counted_s
        self._passed_s += passed_s
        return max(self._counted_s, self._passed_s / STRETCH) >= self._limit_s


_MARGIN = 2.0  # factor on the time that so many tokens took before
_LEAST_TOKENS = 32  # of a step whose pace counts; smaller steps are mostly overhead
_FORGETTING = 0.98  # decay of an old, slower pace with every measured step
# Until a pace is measured: a token costs about a multiplication and an addition for each weight, and few
# cores process fewer bytes of weights per second.
_ASSUMED_BYTES_PER_S = 2e10


class StepLimit:
    """Limit in seconds = `base_s` + 2 * tokens * seconds per token, the slowest pace seen in larger steps.

    Args:
        base_s: Limit of a step without tokens.
        weight_bytes: Weights of the rank that has most of them.
    """

    def __init__(self, base_s: float, weight_bytes: int) -> None:
        self.base_s = base_s
        self._token_s = weight_bytes / _ASSUMED_BYTES_PER_S
        self._measured = False

    def limit_s(self, plan: StepPlan) -> float:
        """Return the limit of a step, in seconds."""
        return self.base_s + self.token_time_s(plan)

    def token_time_s(self, plan: StepPlan) -> float:
        """Return the part of the limit that its tokens add, in seconds."""
        return _MARGIN * self._token_s * _num_tokens(plan)

    def measures(self, plan: StepPlan) -> bool:
        """Return whether the duration of this step counts for the pace."""
        return _num_tokens(plan) >= _LEAST_TOKENS

    def record_step(self, plan: StepPlan, compute_s: float) -> None:
        """Take the duration of a step into the pace, without the time for which ranks waited for a core."""
        if self.measures(plan):
            tokens = _num_tokens(plan)
            old = self._token_s * _FORGETTING if self._measured else 0.0
            self._token_s = max(old, compute_s / tokens)
            self._measured = True


def _num_tokens(plan: StepPlan) -> int:
    return sum(piece.num_tokens for piece in plan.chunks)
