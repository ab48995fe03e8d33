"""Runs two sides in turns, and keeps the CPU time and the time of each round."""

import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Side = Callable[[], Awaitable[int]]  # does the work, and returns how many units it was


@dataclass(slots=True)
class Cost:
    """What a unit of work took, one entry for each round.

    Attributes:
        cpu_us: CPU time, in microseconds.
        wall_us: Time, in microseconds.
    """

    cpu_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{statistics.median(self.cpu_us):9.2f} us CPU {statistics.median(self.wall_us):9.2f} us"


async def alternate(
    work: str, ours: Side, library: Side, *, rounds: int, pids: tuple[int, int] = (0, 0)
) -> None:
    """Prints the medians of both, and the ratio of their CPU times.

    Args:
        work: What a unit is.
        ours: One side.
        library: The other one.
        rounds: How often each runs, after one round that does not count.
        pids: The processes that are measured; 0: this one.
    """
    costs = Cost(), Cost()
    for number in range(rounds + 1):
        for cost, side, pid in zip(costs, (ours, library), pids, strict=True):
            cpu_s, began_s = cpu_seconds(pid), time.perf_counter()
            units = await side()
            if number:
                cost.wall_us.append((time.perf_counter() - began_s) * 1e6 / units)
                cost.cpu_us.append((cpu_seconds(pid) - cpu_s) * 1e6 / units)
    ratio = statistics.median(costs[0].cpu_us) / statistics.median(costs[1].cpu_us)
    print(f"{work:44} ours {costs[0]}   library {costs[1]}   ratio {ratio:.2f}", flush=True)


def cpu_seconds(pid: int = 0) -> float:
    """Returns the CPU time that a process has used, in seconds; 0: this one."""
    if not pid:
        return time.process_time()
    with open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
