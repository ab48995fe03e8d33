"""Observes a leader through `/proc`, for the process beside it that sends its heartbeats."""

import os
from contextlib import suppress

from msgspec.structs import replace

from services.worker.leader.heartbeats.leader_signs import LeaderSample, LeaderSigns, ThreadSample
from shared.host.cpu_pressure import CpuPressure
from shared.host.thread_counts import read_schedstat, read_stat, thread_ids
from shared.messages import Vitals

_ENDED = "ZX"


class ProcessWatch:
    """Implements `LeaderWatch` for the parent of this process.

    While descriptions are new it reads nothing of the leader: they prove that its event loop turns.

    Args:
        doubt_s: Age of a description from which the leader's process is examined.
        stale_s: See `LeaderSigns`.
    """

    def __init__(self, pid: int, doubt_s: float, stale_s: float) -> None:
        self._pid = pid
        self._doubt_s = doubt_s
        self._signs = LeaderSigns(stale_s)
        self._pressure = CpuPressure()
        self._ended = False

    def note_end(self) -> None:
        """The leader's end of the control pipe is closed, which only its end does."""
        self._ended = True

    def assess(self, described_s: float, now: float) -> Vitals:
        """See `LeaderWatch.assess`."""
        pressure = self._pressure.read(now)
        if self._ended or os.getppid() != self._pid:
            vitals = self._signs.judge(None, described_s, now)
        elif described_s < self._doubt_s:
            self._signs.clear()
            return Vitals(described_ms=round(1000 * described_s), pressure=pressure)
        else:
            with_threads = described_s >= self._signs.wants_threads_from_s
            vitals = self._signs.judge(read_leader(self._pid, with_threads=with_threads), described_s, now)
        return replace(vitals, pressure=pressure)


def read_leader(pid: int, *, with_threads: bool) -> LeaderSample | None:
    """Returns the threads of a process, or only its main one; None if it has ended."""
    try:
        main = _read_thread(pid, pid)
    except OSError:
        return None
    if main.state in _ENDED:
        return None
    threads = {pid: main}
    for tid in thread_ids(pid) if with_threads else []:
        if tid != pid:
            with suppress(OSError):  # threads come and go
                threads[tid] = _read_thread(pid, tid)
    return LeaderSample(main, threads)


def _read_thread(pid: int, tid: int) -> ThreadSample:
    state = read_stat(pid, tid)[0]
    try:
        return ThreadSample(state, *read_schedstat(pid, tid))
    except (FileNotFoundError, ValueError):  # a kernel without it: no time counts as waited for
        return ThreadSample("S" if state == "R" else state, 0, 0, 0)
