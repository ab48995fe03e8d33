"""What Linux counts of threads of this host, from `/proc`."""

import os

_READ_BYTES = 4096


def thread_ids(pid: int) -> list[int]:
    """Return the ids of a process's threads; none if it is gone, or on another host."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")] if pid else []
    except OSError:
        return []


def read_stat(pid: int, tid: int) -> list[str]:
    """Return the fields of a thread's `stat` from its state on. Raises `OSError`: it has ended."""
    return read_file(f"/proc/{pid}/task/{tid}/stat").rpartition(b")")[2].decode("ascii").split()


def read_schedstat(pid: int, tid: int) -> tuple[int, int, int]:
    """Return a thread's time on a core and in completed waits for one, both in ns, and its time slices.

    Raises:
        OSError: It has ended, or the kernel does not count that.
        ValueError: The kernel does not count that.
    """
    run_ns, wait_ns, timeslices = map(int, read_file(f"/proc/{pid}/task/{tid}/schedstat").split())
    return run_ns, wait_ns, timeslices


def read_file(path: str) -> bytes:
    """Return the first bytes of a file of the kernel. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)
