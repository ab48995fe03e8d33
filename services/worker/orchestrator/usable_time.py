"""How much of a time a process could use: waits for a core or a disk do not count against it.

Pure. Limits on ranks are counted in usable time, so that a busy machine is not mistaken for a hung rank. A
process that wanted a core and got none, or that a disk served, may have been about to make progress. One
that is stopped, sleeps, is blocked, or uses its core without progress has no such excuse.
"""

from collections.abc import Sequence

from services.worker.orchestrator.process_readings import CpuCounts, ProcessReading

_MOST_STOPPED_S = 1.0  # counted at once of a process that was seen stopped twice
Readings = tuple[ProcessReading | None, ProcessReading | None]  # at the beginning and at the end of a time


def usable_s(readings: Readings, passed_s: float) -> float:
    """Return how much of the time between two readings counts against a process, in seconds.

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
    return passed_s * (1.0 - waited_s(before, after) / (after.at_s - before.at_s))


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
