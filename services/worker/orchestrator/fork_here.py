"""Starts the fork server of a group by a fork of the leader, where that has imported torch already.

That is so in a leader that was itself forked from a process with the imports (`ryz up`). The fork comes
before the leader has any thread, since it copies only the calling one; later starts take an interpreter of
their own.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from shared.host.thread_counts import thread_ids

_POLL_S = 0.001
_CRASHED = 70


class ForkedProcess:
    """A child of this process, with the part of `subprocess.Popen` that its owner needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        give_up = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= give_up:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def can_fork(module: str) -> bool:
    """Whether the module is imported, and this process has one thread."""
    return module in sys.modules and len(thread_ids(os.getpid())) == 1


def fork_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], own: Sequence[int]
) -> ForkedProcess:
    """Fork a process that runs the `main` of an imported module, as a command of its own would.

    Args:
        arguments: What would follow the module's name on a command line.
        environment: Replaces that of this process.
        own: Descriptors of this process that the new one closes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run(module, arguments, environment, own)
    return ForkedProcess(pid)


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], own: Sequence[int]
) -> NoReturn:
    status = _CRASHED
    try:
        os.setpgid(0, 0)
        for descriptor in own:
            os.close(descriptor)
        os.dup2(2, 1)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        if (titles := sys.modules.get("setproctitle")) is not None:
            titles.setproctitle(" ".join([sys.executable, "-P", "-m", module, *arguments]))
        status = sys.modules[module].main()
    except BaseException:  # nothing may return into the leader
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
