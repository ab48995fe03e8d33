"""Adds up the CPU time of processes, by service.

A service's time is that of its process and of all that it started (ranks), those that ended and were waited
for included. The kernel counts in ticks of 10 ms, which is fine over seconds.
"""

from collections.abc import Collection, Mapping

import psutil

from benchmarks.lib.measuring import BenchError


class CpuMeter:
    """CPU seconds of a set of named processes since the last `start`.

    Args:
        pids: Process ids by name.
        alone: Names of processes whose children do not count.
    """

    def __init__(self, pids: Mapping[str, int], alone: Collection[str] = ()) -> None:
        self._pids = dict(pids)
        self._alone = frozenset(alone)
        self._began: dict[str, float] = {}

    def start(self) -> None:
        """Begin to count."""
        self._began = self._times()

    def read(self) -> dict[str, float]:
        """Return CPU seconds by name since `start`.

        Raises:
            BenchError: A process ended meanwhile, so its time is unknown.
        """
        now = self._times()
        return {name: now[name] - began for name, began in self._began.items()}

    def _times(self) -> dict[str, float]:
        return {name: spent_s(pid, name not in self._alone) for name, pid in self._pids.items()}


def spent_s(pid: int, with_children: bool) -> float:
    """Return the CPU seconds that a process has spent; raises `BenchError` if it has ended."""
    while True:
        try:
            root = psutil.Process(pid)
            times = [root.cpu_times()]
            if not with_children:
                return float(times[0].user + times[0].system)
            times += [child.cpu_times() for child in root.children(recursive=True)]
            return float(sum(sum(one[:4]) for one in times))  # with the time of children that have ended
        except psutil.NoSuchProcess as error:
            if error.pid == pid:
                raise BenchError(f"process {pid} ended during the measurement") from error
