"""A child that was forked, and what it does: run the `main` of an imported module."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import setproctitle

_POLL_S = 0.001
_CRASHED = 70


class ForkedProcess:
    """A child of this process, with the part of `subprocess.Popen` that its owner needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if give_up is not None and time.monotonic() >= give_up:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def run_forked(work: Callable[[], int]) -> NoReturn:
    """Do the work of a process that was just forked, and end it: it must not go on with its parent's code."""
    status = _CRASHED
    try:
        status = work()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_module(module: str, arguments: Sequence[str]) -> int:
    """Run the `main` of an imported module as a command of its own would; return the exit code."""
    sys.argv = [module, *arguments]
    setproctitle.setproctitle(" ".join([sys.executable, "-P", "-m", module, *arguments]))
    return sys.modules[module].main() or 0
