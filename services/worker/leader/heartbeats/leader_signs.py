"""Judges whether a leader is frozen, hangs, or only waits for a core. Pure: samples and time are arguments.

The event loop of a leader shows that it turns by new descriptions. Without them there are three cases:

- *Frozen.* The main thread is in the state T or t: stopped by a signal or a debugger.
- *Starved.* A thread of the leader is ready to run and gets no core, or waits for the disk. That is the
  machine's fault, and takes as long as it takes, at most `STARVED_MOST_S`.
- *Hung.* Neither: the loop waits for something that does not come, or computes without an end.

So what counts against an event loop is the time since its last description, less the time in which a thread
of the process was starved. Any thread: the loop may wait for a lock that a starved one holds. The observer
may have had no core either: time before its first sample counts for a quarter of the limit at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shared.messages import Vitals

FROZEN_S = 0.2  # in the state T; debuggers and profilers stop a process for a moment
STARVED_MOST_S = 30.0  # R22: what hangs is found within 30 s
_STOPPED = "Tt"
_READY, _DISK = "R", "D"


class ThreadSample(NamedTuple):
    """A thread as `/proc/<pid>/task/<tid>` shows it.

    Attributes:
        state: `R` ready or running, `S` sleeping, `D` waiting for the disk, `T` and `t` stopped.
        cpu_ns: Time on a core so far.
        waited_ns: Time in which it was ready and had no core. A wait that goes on is not in it.
        timeslices: How often it got a core.
    """

    state: str
    cpu_ns: int
    waited_ns: int
    timeslices: int


class LeaderSample(NamedTuple):
    """The threads of a leader by their ids; `main` is that of the event loop."""

    main: ThreadSample
    threads: Mapping[int, ThreadSample]


@dataclass(slots=True)
class _Doubt:
    """What threads had got when the loop came into doubt, and the waits that go on.

    Attributes:
        since: When the first sample was taken.
        first: The first sample of each thread.
        last: The last sample of each thread, and since when it has not changed.
        disk_s: How long each thread waited for the disk.
    """

    since: float
    checked_at: float
    first: dict[int, ThreadSample]
    last: dict[int, tuple[ThreadSample, float]]
    disk_s: dict[int, float]


class LeaderSigns:
    """Follows the samples of one leader.

    Args:
        stale_s: How long the event loop may stand still, beyond the time in which it was starved.
    """

    def __init__(self, stale_s: float) -> None:
        self._stale_s = stale_s
        self._frozen_since: float | None = None
        self._thawed_at: float | None = None
        self._doubt: _Doubt | None = None

    @property
    def wants_threads_from_s(self) -> float:
        """Age of a description from which on `judge` needs all threads; before, the main one is enough."""
        return self._stale_s / 4

    def clear(self) -> None:
        """The event loop turns."""
        self._frozen_since = self._thawed_at = self._doubt = None

    def judge(self, sample: LeaderSample | None, described_s: float, now: float) -> Vitals:
        """Returns the evidence.

        Args:
            sample: The leader's threads; None: there is no such process.
            described_s: Age of its newest description.
            now: Monotonic seconds.
        """
        described_ms = round(1000 * described_s)
        if sample is None:
            return Vitals(leader="ended", described_ms=described_ms)
        if sample.main.state in _STOPPED:
            self._frozen_since = now if self._frozen_since is None else self._frozen_since
            frozen = now - self._frozen_since >= FROZEN_S
            return Vitals(leader="frozen" if frozen else "running", described_ms=described_ms)
        if self._frozen_since is not None:
            self._frozen_since, self._doubt, self._thawed_at = None, None, now
        if self._thawed_at is not None:  # it gets the same time to go on as after a description
            described_s = min(described_s, now - self._thawed_at)
        if described_s < self.wants_threads_from_s:
            return Vitals(described_ms=described_ms)
        starved_s, cpu_s = self._follow(sample.threads, now)
        observed_s = now - self._doubt.since if self._doubt is not None else 0.0
        counted_s = min(described_s, self.wants_threads_from_s + observed_s)
        hung = counted_s - min(starved_s, STARVED_MOST_S) > self._stale_s
        return Vitals(
            leader="hung" if hung else "running",
            described_ms=described_ms,
            starved_ms=round(1000 * starved_s),
            cpu_ms=round(1000 * cpu_s),
        )

    def _follow(self, threads: Mapping[int, ThreadSample], now: float) -> tuple[float, float]:
        """Returns how long the most starved thread had no core, and how long all together had one."""
        doubt = self._doubt
        if doubt is None:
            doubt = self._doubt = _Doubt(now, now, {}, {}, {})
        starved_s = cpu_s = 0.0
        for tid, sample in threads.items():
            first = doubt.first.setdefault(tid, sample)
            last, unchanged_since = doubt.last.get(tid, (sample, now))
            if sample != last:
                unchanged_since = now
            doubt.last[tid] = sample, unchanged_since
            if sample.state == _DISK and last.state == _DISK:
                doubt.disk_s[tid] = doubt.disk_s.get(tid, 0.0) + now - doubt.checked_at
            waited_s = (sample.waited_ns - first.waited_ns) / 1e9 + doubt.disk_s.get(tid, 0.0)
            if sample.state == _READY:
                waited_s += now - unchanged_since  # ready all the time, and did not run: it waits still
            starved_s = max(starved_s, waited_s)
            cpu_s += (sample.cpu_ns - first.cpu_ns) / 1e9
        doubt.checked_at = now
        return starved_s, cpu_s
