"""Memory, files and threads of a stack's processes, sampled all the time, for leaks."""

from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of a service, its child processes included.

    Attributes:
        at_s: Seconds since the load began.
        service: Its name.
        pid: Of its own process; another one after a restart.
        memory_bytes: Proportional set size where the kernel has it, so that shared memory counts once.
        files: Open files and sockets.
        threads: Of all its processes.
    """

    at_s: float
    service: str
    pid: int
    memory_bytes: int
    files: int
    threads: int


def take_samples(services: Mapping[str, tuple[int, bool]], at_s: float) -> list[Sample]:
    """Samples all services that are there; one that ends meanwhile is left out."""
    found = []
    for name, (pid, _) in services.items():
        memory = files = threads = 0
        try:
            own = psutil.Process(pid)
            for process in (own, *own.children(recursive=True)):
                memory += process.memory_full_info().pss
                files += process.num_fds()
                threads += process.num_threads()
        except psutil.Error:
            continue
        found.append(Sample(round(at_s, 1), name, pid, memory, files, threads))
    return found
