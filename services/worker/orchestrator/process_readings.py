"""What the kernel counts of a process: states, CPU times and waits of its threads, and its reads.

`usable_time.py` judges by these counts how much of a time the process could use.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CpuCounts = Mapping[
    int, tuple[int, int]
]  # by thread id: time on a core, and in completed waits for one, in ns
STOPPED = frozenset({"T", "t"})
_PAGE = 4096
_READ_BYTES = 4096
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
        threads: By thread id.
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
            fields = _fields(f"/proc/{pid}/task/{tid}/stat")
            run_ns, wait_ns = _cpu_counts(pid, tid)
        except (OSError, ValueError):  # the thread has ended
            continue
        threads[tid] = ThreadReading(fields[0], run_ns, wait_ns)
        pages += int(fields[_MAJOR_FAULTS])
        if tid == pid:
            state = fields[0]
    return ProcessReading(at_s, state, threads, pages + _pages_read(pid)) if state else None


def thread_ids(pid: int) -> list[int]:
    """Return the ids of a process's threads; empty: it is gone, or on another host."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")] if pid else []
    except OSError:
        return []


def read_cpu(pid: int, tids: Iterable[int]) -> CpuCounts:
    """Return the counts of those threads that still run."""
    counts = {}
    for tid in tids:
        with contextlib.suppress(OSError, ValueError):
            counts[tid] = _cpu_counts(pid, tid)
    return counts


def _cpu_counts(pid: int, tid: int) -> tuple[int, int]:
    run_ns, wait_ns, _ = _read(f"/proc/{pid}/task/{tid}/schedstat").split()
    return int(run_ns), int(wait_ns)


def _fields(path: str) -> list[str]:
    return _read(path).rpartition(b")")[2].decode("ascii").split()


def _pages_read(pid: int) -> int:
    """Return the pages that a process has read from block devices; 0 if the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read(f"/proc/{pid}/io").splitlines():
            name, _, value = line.partition(b":")
            if name == b"read_bytes":
                return int(value) // _PAGE
    return 0


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)
