"""Adds up the CPU time of processes, by service: who spends how much on a request.

A service's time is that of its process and of all that it started (ranks). The kernel counts in ticks of
10 ms, which is fine over seconds.
"""

from collections.abc import Mapping

import psutil


class CpuMeter:
    """CPU seconds of a set of named processes since the last `start`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._began: dict[str, float] = {}

    def start(self) -> None:
        """Begins to count."""
        self._began = {name: _tree_s(pid) for name, pid in self._pids.items()}

    def read(self) -> dict[str, float]:
        """CPU seconds by name since `start`.

        Raises:
            LookupError: a process ended meanwhile; a measurement of what is left would be wrong.
        """
        return {name: _tree_s(self._pids[name]) - began for name, began in self._began.items()}


def _tree_s(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    except psutil.NoSuchProcess as error:
        raise LookupError(f"process {error.pid} ended during the measurement") from error
    return float(sum(one.user + one.system for one in times))
