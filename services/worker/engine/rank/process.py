"""Settings of a rank's process: its bond to its parent, its priority, its name, its log lines, its end."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from typing import NoReturn

from shared.telemetry.logs.schema import BURST
from shared.telemetry.logs.setup import write_lines

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29
_MAX_TRACE_BYTES = 8192


def bind_to_parent(parent_pid: int) -> bool:
    """Makes the kernel kill this process when its parent ends; False if that has happened already.

    Ctrl-C in a terminal is left for the leader to handle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # the collectives sleep for 20 us; the default timer slack alone is 50 us
        libc.prctl(_PR_SET_TIMERSLACK, 1000)
    return os.getppid() == parent_pid


def lower_priority(besides: int = 0) -> None:
    """Lowers this rank's priority to RYZ_RANK_NICE, so that processes that pass messages run first.

    They need a core for moments only, and ranks wait for what they bring. The priority is never raised above
    the inherited one. Called when a rank is ready: with a low priority, loading would starve on a busy
    machine.

    Args:
        besides: Id of a thread that keeps its priority; 0 for none.
    """
    text = os.environ.get("RYZ_RANK_NICE", "")
    if not text.isdigit() or sys.platform != "linux":
        return
    for thread in map(int, os.listdir("/proc/self/task")):  # each has its own priority
        if thread == besides:
            continue
        with contextlib.suppress(OSError):  # it has ended
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(now, min(int(text), 19)))


def name_process(name: str) -> None:
    """Sets the name that `ps` and `top` show, at most 15 characters; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode("ascii"))


class CrashTrace:
    """Memory in which a process leaves the stacks of its threads when a fatal signal ends it.

    A parent makes it, the child enables it after the fork, and the parent reads it when the child has ended:
    what Python's faulthandler would print becomes a log line. Linux only; elsewhere it stays empty.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("ryz-crash", os.MFD_CLOEXEC) if sys.platform == "linux" else -1

    def enable(self) -> None:
        """Makes this process write its stacks here: at SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL."""
        if self._fd >= 0:
            faulthandler.enable(file=self._fd, all_threads=True)

    def take_lines(self) -> list[str]:
        """Returns what was written, a line for each frame, and frees the memory."""
        if self._fd < 0:
            return []
        data = os.pread(self._fd, _MAX_TRACE_BYTES, 0)
        self.close()
        return [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]

    def close(self) -> None:
        """Frees the memory in this process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def end_process(status: int) -> NoReturn:
    """Ends the process at once; finalizing an interpreter with torch in it takes half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def write_rank_lines(role: str, rank: int | None = None) -> None:
    """Sets up this process's log lines; of a fork, in the fork."""
    names: dict[str, str | int] = {"service": "worker", "role": role, "pid": os.getpid()}
    # a rank that joins from another host has no leader's instance in its environment
    instance = os.environ.get("RYZ_INSTANCE_ID") or f"{socket.gethostname()}-{os.getpid()}"
    given = {"instance": instance, "group": os.environ.get("RYZ_GROUP", "")}
    names |= {name: value for name, value in given.items() if value}
    if rank is not None:
        names["rank"] = rank
    form = os.environ.get("RYZ_LOG_FORMAT") or (
        "console" if role == "join" and sys.stderr.isatty() else "json"
    )
    level = os.environ.get("RYZ_LOG_LEVEL", "info")
    write_lines(names, level=level, form=form, burst=BURST)
