"""The leader's end of a nursery: one process that has torch loaded and forks ranks from it.

Everything here returns at once. What the nursery reports is read whenever somebody asks about a child, so no
task and no callback belongs to it. The other end is `services/worker/engine/rank/fork_server.py`.
"""

import contextlib
import os
import socket
import subprocess
import time
import weakref
from collections.abc import Sequence

import msgspec

from services.worker.orchestrator.rank_process_handle import coming_exit_code, exit_text, runs
from services.worker.rank_protocol.fork_messages import (
    MAX_PACKET_BYTES,
    Ended,
    Fork,
    Forked,
    ForkServerReport,
    ForkServerRequest,
    Kill,
)
from shared.host.own_python import module_command

COMMAND = tuple(module_command("services.worker.engine.rank.fork_server"))
_KILLED = -9
_END_WAIT_S = 0.3
_KILL_WAIT_S = 5.0


class ForkedRank:
    """A process that a nursery forks; see `Child`. `pid` is 0 until the nursery has said it."""

    def __init__(self, server: "ForkServerClient", number: int) -> None:
        self.pid = 0
        self.exit_code: int | None = None
        self._server = server
        self._number = number

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        self._server.read_reports()
        if self.exit_code is None and self._server.gone and not (self.pid and runs(self.pid)):
            self.exit_code = _KILLED  # the kernel does that to the children of a nursery
        return self.exit_code

    def kill(self) -> None:
        """Ends it now; without waiting for a nursery that is still starting."""
        self._server.read_reports()
        if self.pid:
            self._server.send_request(Kill(self._number))
        elif self.exit_code is None:
            self._server.end_server()

    def describe_end(self) -> str:
        """See `Child`."""
        code = self.poll()
        if code is None and self.pid:
            code = coming_exit_code(self.pid)  # the kernel knows long before the nursery may collect it
        if self._server.gone and code is not None:
            return f"the process that ranks are forked from ended ({self._server.describe_end()})"
        return exit_text(code)


class ForkServerClient:
    """Starts the process; `fork` may be called at once, and is answered when torch is loaded.

    Args:
        environment: Of the nursery and all its children.
        command: What to run, for tests.

    Raises:
        OSError: the process could not be started.
    """

    def __init__(self, environment: dict[str, str], command: Sequence[str] = COMMAND) -> None:
        self.gone = False
        self._children: dict[int, ForkedRank] = {}
        self._count = 0
        self._reports = msgspec.msgpack.Decoder(ForkServerReport)
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(self._sock.close)
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                # a thread pool of the nursery's would be lost in its children; torch has its own anyway
                env=environment | {"OPENBLAS_NUM_THREADS": "1"},
                process_group=0,  # Ctrl-C in a terminal is for the leader, which ends its ranks in order
            )
            on_failure.pop_all()
        self.end_server = weakref.finalize(self, _end, self._sock, self._process)

    @property
    def pid(self) -> int:
        """Process id of the nursery itself."""
        return self._process.pid

    def fork_rank(self, rank: int, sock: socket.socket, inherit: Sequence[int]) -> ForkedRank:
        """Asks for a rank that gets copies of the socket and of those descriptors.

        Raises:
            OSError: the nursery is gone.
        """
        self._count += 1
        request = Fork(self._count, rank, list(inherit))
        socket.send_fds(self._sock, [msgspec.msgpack.encode(request)], [sock.fileno(), *inherit])
        child = ForkedRank(self, self._count)
        self._children[self._count] = child
        return child

    def send_request(self, request: ForkServerRequest) -> None:
        """Sends a request; dropped when the nursery is gone, which `gone` tells."""
        try:
            self._sock.send(msgspec.msgpack.encode(request))
        except OSError:
            self.read_reports()

    def read_reports(self) -> None:
        """Takes in what the nursery has reported so far."""
        while not self.gone:
            try:
                data = self._sock.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:  # reset, or closed by `end_server`
                data = b""
            if not data:
                self.gone = True
                return
            self._take(self._reports.decode(data))

    def describe_end(self) -> str:
        """How the nursery ended."""
        deadline = time.monotonic() + 0.1  # the kernel closes files just before it reports the end
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return exit_text(code)

    def _take(self, report: Forked | Ended) -> None:
        if isinstance(report, Forked):
            self._children[report.child].pid = report.pid
        else:
            self._children.pop(report.child).exit_code = report.exit_code


def _end(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    sock.close()  # at which it ends itself, unless it is still loading
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_WAIT_S)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)
