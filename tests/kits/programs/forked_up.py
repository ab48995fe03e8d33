"""Runs `ryz up` in a process that was forked with all imports: it forks its fork servers in turn."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO, NoReturn

from cli.__main__ import main as run_command
from cli.stack.forking import client, server

SUPERVISOR = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1}
_CRASHED = 1


class ForkedServer:
    """A fork server that is a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def kill(self) -> None:
        """Kill it, if `wait` has not returned."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Return the exit code."""
        if not self._ended:
            os.waitpid(self.pid, 0)
            self._ended = True
        return -signal.SIGKILL


def start_server(
    arguments: Sequence[str], environment: Mapping[str, str], passed: int, log: IO[bytes]
) -> ForkedServer:
    """Stands in for the function of this name in `cli/stack/forking/client.py`."""
    pid = os.fork()
    if pid == 0:
        _serve(arguments, environment, passed, log)
    return ForkedServer(pid)


def _serve(arguments: Sequence[str], environment: Mapping[str, str], passed: int, log: IO[bytes]) -> NoReturn:
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)  # that of the supervisor's event loop
        for signum in SUPERVISOR:
            signal.signal(signum, signal.SIG_DFL)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        kept = os.dup2(passed, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["server", str(kept), *arguments[1:]]
        server.main()
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(_CRASHED)


def main() -> None:
    """Run the command line."""
    client.start_server = start_server  # type: ignore[assignment]  # all of Popen that is needed
    run_command()
