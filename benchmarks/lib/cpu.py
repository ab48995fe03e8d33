"""Adds up the CPU time of processes, by service.

A service's time is that of its process and of all that it started (ranks). The kernel counts in ticks of
10 ms, which is fine over seconds.
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
    try:
        root = psutil.Process(pid)
        children = root.children(recursive=True) if with_children else []
        times = [process.cpu_times() for process in (root, *children)]
    except psutil.NoSuchProcess as error:
        raise BenchError(f"process {error.pid} ended during the measurement") from error
    return float(sum(one.user + one.system for one in times))
