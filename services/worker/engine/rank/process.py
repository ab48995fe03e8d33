"""Settings of a rank's process: its bond to its parent, its priority, its name, its log lines, its end."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

from shared.host.numa_memory import rank_place, take_place
from shared.host.numa_nodes import count_nodes, numbered_nodes
from shared.telemetry.logs.schema import BURST
from shared.telemetry.logs.setup import write_lines

if TYPE_CHECKING:  # a process binds itself to its parent before it imports more
    from services.worker.rank_protocol.rank_messages import RankConfig

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


def write_rank_lines(role: str, rank: int | None = None, *, group: str = "", instance: str = "") -> None:
    """Sets up this process's log lines; of a fork, in the fork.

    Args:
        role: What the process is; see docs/logs.md.
        rank: Its rank; None: it is none, or does not know yet which one.
        group: Its group; empty: as the environment says.
        instance: Its leader's instance; empty: as the environment says.
    """
    names: dict[str, str | int] = {"service": "worker", "role": role, "pid": os.getpid()}
    # a rank that joins from another host has no leader's instance in its environment
    instance = instance or os.environ.get("RYZ_INSTANCE_ID") or f"{socket.gethostname()}-{os.getpid()}"
    given = {"instance": instance, "group": group or os.environ.get("RYZ_GROUP", "")}
    names |= {name: value for name, value in given.items() if value}
    if rank is not None:
        names["rank"] = rank
    form = os.environ.get("RYZ_LOG_FORMAT") or (
        "console" if role == "join" and sys.stderr.isatty() else "json"
    )
    level = os.environ.get("RYZ_LOG_LEVEL", "info")
    write_lines(names, level=level, form=form, burst=BURST)


def name_rank_lines(config: "RankConfig") -> "RankConfig":
    """Sets up the log lines of a rank whose config has come, with its rank, its group and its leader."""
    write_rank_lines("rank", config.rank, group=config.group, instance=config.instance_id)
    return config


def take_node(config: "RankConfig") -> int:
    """Keeps this rank and its memory on a NUMA node where the machine has several; -1: on none."""
    here = config.rank < config.run.local_ranks
    index, ranks = (config.rank, config.run.local_ranks) if here else (0, 1)
    place = rank_place(numbered_nodes(), count_nodes(), index, ranks, config.run.threads)
    return take_place(place).node
