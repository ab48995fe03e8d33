"""Handles of rank processes, however they were started, and the kernel's facts about a process."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Protocol

STILL_RUNNING = "still running"
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class RankProcessHandle(Protocol):
    """A rank's process. `pid` is 0 until it is known."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        ...

    def kill(self) -> None:
        """End the process now; does nothing when it has ended."""
        ...

    def describe_end(self) -> str:
        """Return `killed by SIGKILL`, `exit code 1`, or `still running`; known as soon as the end begins."""
        ...


class SpawnedRank:
    """A rank that is a child process of the leader."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.poll = process.poll
        self.kill = process.kill

    def describe_end(self) -> str:
        """See `RankProcessHandle`."""
        code = self.poll()
        return exit_text(coming_exit_code(self.pid) if code is None else code)


def exit_text(code: int | None) -> str:
    """Describe an exit code; None if the process runs."""
    if code is None:
        return STILL_RUNNING
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"killed by signal {-code}"


def coming_exit_code(pid: int) -> int | None:
    """Return the exit code of a process that is ending or has ended uncollected; None while it runs.

    Linux reports it as soon as the end begins, long before the memory is freed and the process is a zombie. 0
    counts as None: running processes show it too, and so do kernels that do not report the code.
    """
    fields = stat(pid)
    if not fields or fields[0] in {"T", "t"}:  # a stopped process shows the signal that stopped it
        return None
    try:
        code = os.waitstatus_to_exitcode(int(fields[-1]))
    except ValueError:  # the status of a stop, which came while the kernel wrote the line
        return None
    return None if not code or -code in _STOPS else code


def runs(pid: int) -> bool:
    """Return True if the process is alive and no zombie; orphans may be collected late."""
    fields = stat(pid)
    return bool(fields) and fields[0] != "Z"


def stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the state to the exit status.

    None of them if the process is gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return []
