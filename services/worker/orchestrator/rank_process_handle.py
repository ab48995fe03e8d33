"""What the leader can ask of a rank's process, however it was started."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Protocol

STILL_RUNNING = "still running"
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class RankProcessHandle(Protocol):
    """A process. `pid` is 0 as long as nobody knows it."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def kill(self) -> None:
        """Ends it now; does nothing when it has ended."""
        ...

    def describe_end(self) -> str:
        """`killed by SIGKILL`, `exit code 1`, or `still running`; known from the moment that it is to end."""
        ...


class SpawnedRank:
    """A child of the leader itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.poll = process.poll
        self.kill = process.kill

    def describe_end(self) -> str:
        """See `RankProcessHandle`."""
        code = self.poll()
        return exit_text(coming_exit_code(self.pid) if code is None else code)


def exit_text(code: int | None) -> str:
    """An exit code in words; None: there is none yet."""
    if code is None:
        return STILL_RUNNING
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # those for real time have no names
        return f"killed by signal {-code}"


def coming_exit_code(pid: int) -> int | None:
    """With what a process ends or has ended that nobody has collected yet; None: it does not end.

    Linux tells it from the moment that the process is to end, long before it has taken the memory back and
    the process is a zombie. 0 counts as None: so it looks for who runs, and where the kernel does not tell.
    """
    fields = stat(pid)
    if not fields or fields[0] in {"T", "t"}:  # one that is stopped shows what stopped it
        return None
    try:
        code = os.waitstatus_to_exitcode(int(fields[-1]))
    except ValueError:  # that of a stop as well, which came while the kernel wrote the line
        return None
    return None if not code or -code in _STOPS else code


def runs(pid: int) -> bool:
    """Alive and no zombie: whoever inherits orphans may collect them late."""
    fields = stat(pid)
    return bool(fields) and fields[0] != "Z"


def stat(pid: int) -> list[str]:
    """What follows the name in `/proc/PID/stat`: the state first, the exit status last; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return []
