"""What the kernel counts of a process: states, CPU times and waits of its threads, and its reads.

`time_limits.py` judges by these counts how much of a time the process could use.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.host.thread_counts import read_file, read_schedstat, read_stat, thread_ids

CpuCounts = Mapping[
    int, tuple[int, int]
]  # by thread id: time on a core, and in completed waits for one, in ns
STOPPED = frozenset({"T", "t"})
_PAGE = 4096
_MAJOR_FAULTS = 9  # field of `/proc/PID/stat`, counted from the state


class ThreadReading(NamedTuple):
    """Counts of one thread.

    Attributes:
        state: The kernel's letter: R runs or waits for a core, S sleeps, D is blocked, T is stopped.
        run_ns: Time on a core.
        wait_ns: Time of completed waits for a core; a wait that still lasts is not in it.
    """

    state: str
    run_ns: int
    wait_ns: int


class ProcessReading(NamedTuple):
    """Counts of one process.

    Attributes:
        at_s: When they were read, monotonic.
        state: State of its main thread.
        threads: Readings by thread id.
        pages_read: Pages that it got from a disk.
    """

    at_s: float
    state: str
    threads: Mapping[int, ThreadReading]
    pages_read: int

    @property
    def is_stopped(self) -> bool:
        """True if a signal or a debugger has stopped it."""
        return self.state in STOPPED


def read_process(pid: int) -> ProcessReading | None:
    """Return the counts of a process of this host; None if it is gone, or the kernel does not give them."""
    at_s, threads, state, pages = time.monotonic(), dict[int, ThreadReading](), "", 0
    for tid in thread_ids(pid):
        try:
            fields = read_stat(pid, tid)
            run_ns, wait_ns, _ = read_schedstat(pid, tid)
        except (OSError, ValueError):  # the thread has ended
            continue
        threads[tid] = ThreadReading(fields[0], run_ns, wait_ns)
        pages += int(fields[_MAJOR_FAULTS])
        if tid == pid:
            state = fields[0]
    return ProcessReading(at_s, state, threads, pages + _pages_read(pid)) if state else None


def read_cpu(pid: int, tids: Iterable[int]) -> CpuCounts:
    """Return the counts of those threads that still run."""
    counts = {}
    for tid in tids:
        with contextlib.suppress(OSError, ValueError):
            counts[tid] = read_schedstat(pid, tid)[:2]
    return counts


def _pages_read(pid: int) -> int:
    """Return the pages that a process has read from block devices; 0 if the kernel does not report them."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_file(f"/proc/{pid}/io").splitlines():
            name, _, value = line.partition(b":")
            if name == b"read_bytes":
                return int(value) // _PAGE
    return 0
