"""How a process of a group is bound to the one that started it, whether it was forked or spawned."""

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29


def bind_to_parent(parent_pid: int) -> bool:
    """Makes the kernel kill this process when its parent ends; False if that has happened already.

    Ctrl-C in a terminal is left for the leader to handle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # the collectives sleep for some 20 us; the default slack alone is 50 us
        libc.prctl(_PR_SET_TIMERSLACK, 1000)
    return os.getppid() == parent_pid


def give_way(besides: int = 0) -> None:
    """Lets processes that only pass messages on run first when cores are short: they need them for moments,
    and whoever computes needs what they bring. Never takes a higher priority than was inherited.

    Called when a rank is ready: a start that gives way takes for ever on a machine with too much to do.

    Args:
        besides: Id of a thread that gives way to nobody.
    """
    text = os.environ.get("RYZ_RANK_NICE", "")
    if not text.isdigit() or sys.platform != "linux":
        return
    for thread in map(int, os.listdir("/proc/self/task")):  # each has its own
        if thread == besides:
            continue
        with contextlib.suppress(OSError):  # it has ended
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(now, min(int(text), 19)))


def name_process(name: str) -> None:
    """What `ps` and `top` show, at most 15 characters; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode("ascii"))


def end_process(status: int) -> NoReturn:
    """Ends at once: all is closed, and taking the interpreter down with torch in it takes half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
