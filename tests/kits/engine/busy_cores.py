"""Load on a core: busy loops beside ranks that are bound to the same core. All other cores stay free."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

BUSY_CORE = max(os.sched_getaffinity(0))
MOST_S = 120  # a loop ends by itself then
LOOP = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


@contextlib.contextmanager
def busy_core(loops: int, pids: Iterable[int]) -> Iterator[None]:
    """Binds those processes to one core, which as many busy loops of normal priority use as well."""
    core = BUSY_CORE
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(loops):
            started.append(subprocess.Popen([sys.executable, "-S", "-c", LOOP, str(MOST_S)]))
        for pid in [*pids, *(process.pid for process in started)]:
            bind_process(pid, {core})
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def bind_process(pid: int, cores: Iterable[int]) -> None:
    """Binds all threads of a process to those cores."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(tid), cores)
