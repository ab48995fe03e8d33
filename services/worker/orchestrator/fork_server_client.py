"""The leader's client of the fork server: one process that has torch loaded and forks ranks.

No call blocks. Reports of the server are read when a rank's state is asked for, so there is no task and no
callback. The server is `services/worker/engine/rank/fork_server.py`.
"""

import contextlib
import os
import socket
import subprocess
import time
import weakref
from collections.abc import Sequence

import msgspec

from services.worker.forking.fork_here import can_fork, fork_module
from services.worker.forking.forked_process import ForkedProcess
from services.worker.orchestrator.rank_process_handle import coming_exit_code, exit_text, runs
from services.worker.rank_protocol.starting.fork_messages import (
    MAX_PACKET_BYTES,
    Ended,
    Fork,
    Forked,
    ForkServerReport,
    ForkServerRequest,
    Kill,
)
from shared.host.own_python import module_command

MODULE = "services.worker.engine.rank.fork_server"
COMMAND = tuple(module_command(MODULE))
_KILLED = -9
_END_WAIT_S = 0.3
_KILL_WAIT_S = 5.0


class ForkedRank:
    """A rank forked by the fork server; see `RankProcessHandle`. `pid` is 0 until the server reports it."""

    def __init__(self, server: "ForkServerClient", number: int) -> None:
        self.pid = 0
        self.exit_code: int | None = None
        self._server = server
        self._number = number

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        self._server.read_reports()
        if self.exit_code is None and self._server.gone and not (self.pid and runs(self.pid)):
            self.exit_code = _KILLED  # the kernel kills the children of a fork server that ends
        return self.exit_code

    def kill(self) -> None:
        """Kill the rank; if the fork server is still loading, end the server."""
        self._server.read_reports()
        if self.pid:
            self._server.send_request(Kill(self._number))
        elif self.exit_code is None:
            self._server.end_server()

    def describe_end(self) -> str:
        """See `RankProcessHandle`."""
        code = self.poll()
        if code is None and self.pid:
            code = coming_exit_code(self.pid)  # known to the kernel long before the server can collect it
        if self._server.gone and code is not None:
            return f"the process that ranks are forked from ended ({self._server.describe_end()})"
        return exit_text(code)


class ForkServerClient:
    """Starts the fork server; `fork_rank` may be called at once, and ranks start when torch is loaded.

    Args:
        environment: Environment of the server and all its children.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, environment: dict[str, str], command: Sequence[str] = COMMAND) -> None:
        self.gone = False
        self._lost = ""
        self._children: dict[int, ForkedRank] = {}
        self._count = 0
        self._reports = msgspec.msgpack.Decoder(ForkServerReport)
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        # a fork loses the threads of a pool, and torch has its own pool anyway
        environment = environment | {"OPENBLAS_NUM_THREADS": "1"}
        arguments = [str(theirs.fileno()), str(os.getpid())]
        self._process: subprocess.Popen[bytes] | ForkedProcess
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(self._sock.close)
            if command is COMMAND and can_fork(MODULE):
                self._process = fork_module(MODULE, arguments, environment, [self._sock.fileno()])
            else:
                self._process = subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    process_group=0,  # Ctrl-C in a terminal is for the leader, which ends its ranks in order
                )
            on_failure.pop_all()
        self.end_server = weakref.finalize(self, _end, self._sock, self._process)

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._process.pid

    def fork_rank(self, rank: int, sock: socket.socket, inherit: Sequence[int]) -> ForkedRank:
        """Ask for a rank that gets copies of the socket and of the descriptors.

        Raises:
            OSError: The fork server is gone.
        """
        self._count += 1
        request = Fork(self._count, rank, list(inherit))
        socket.send_fds(self._sock, [msgspec.msgpack.encode(request)], [sock.fileno(), *inherit])
        child = ForkedRank(self, self._count)
        self._children[self._count] = child
        return child

    def send_request(self, request: ForkServerRequest) -> None:
        """Send a request, or drop it when the fork server is gone (`gone`)."""
        try:
            self._sock.send(msgspec.msgpack.encode(request))
        except OSError:
            self.read_reports()

    def read_reports(self) -> None:
        """Read the server's reports so far."""
        while not self.gone:
            try:
                data = self._sock.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # reset, or closed by `end_server`
                self._lost, data = str(error), b""
            if not data:
                self.gone = True
                return
            self._apply_report(self._reports.decode(data))

    def describe_end(self) -> str:
        """Describe how the fork server ended."""
        deadline = time.monotonic() + 0.1  # the kernel closes files just before it reports the end
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return f"its socket failed: {self._lost}" if code is None and self._lost else exit_text(code)

    def _apply_report(self, report: Forked | Ended) -> None:
        if isinstance(report, Forked):
            self._children[report.child].pid = report.pid
        else:
            self._children.pop(report.child).exit_code = report.exit_code


def _end(sock: socket.socket, process: subprocess.Popen[bytes] | ForkedProcess) -> None:
    sock.close()  # the server ends itself then, unless it is still loading
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_WAIT_S)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)
