"""The process that ranks are forked from: `python -m services.worker.engine.rank.fork_server FD PID`.

It imports torch once, which takes nearly all of the time of a rank's start, and then forks ranks on request:
in milliseconds, sharing the memory of the imports. It computes nothing and so has a single thread: a fork
copies only the calling thread, and a thread pool (OpenMP's) without its threads would hang.
"""

import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from services.worker.engine.rank.process import (
    CrashTrace,
    bind_to_parent,
    end_process,
    name_process,
    name_rank_lines,
    write_rank_lines,
)
from services.worker.rank_protocol.starting.fork_messages import (
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    Ended,
    Fork,
    Forked,
    ForkServerReport,
    ForkServerRequest,
    Kill,
)

log = structlog.get_logger(__name__)
Serve = Callable[[socket.socket, float, Mapping[int, int]], int]
_CRASHED = 70


class ForkServer:
    """Forks ranks on request and reports their ends.

    Args:
        sock: Connected to the leader; its end ends the fork server, and so all ranks.
        serve: Runs a rank, given its socket, its start time, and its descriptors by their numbers in the
            leader.
    """

    def __init__(self, sock: socket.socket, serve: Serve) -> None:
        self._sock = sock
        self._serve = serve
        self._children: dict[int, int] = {}  # process id -> the leader's number
        self._traces: dict[int, tuple[int, CrashTrace]] = {}  # process id -> rank, its last words
        self._requests = msgspec.msgpack.Decoder(ForkServerRequest)
        self._reports = msgspec.msgpack.Encoder()
        self._woken, self._wake = os.pipe()

    def serve_requests(self) -> None:
        """Returns when the leader is gone."""
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._collect_ended()
                if self._sock.fileno() in ready and not self._handle_request():
                    return

    def _handle_request(self) -> bool:
        """Handles one request.

        Returns:
            False when the leader is gone.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, MAX_PACKET_BYTES, MAX_DESCRIPTORS)
        except ConnectionResetError:
            return False
        if not data:
            return False
        request = self._requests.decode(data)
        if isinstance(request, Fork):
            self._fork(request, descriptors)
        else:
            self._kill(request)
        return True

    def _fork(self, request: Fork, descriptors: list[int]) -> None:
        _check_threads()
        own_pid, trace = os.getpid(), CrashTrace()
        pid = os.fork()
        if pid == 0:
            self._become_rank(request, descriptors, own_pid, trace)
        self._children[pid] = request.child
        self._traces[pid] = request.rank, trace
        for descriptor in descriptors:
            os.close(descriptor)
        self._report(Forked(request.child, pid))

    def _become_rank(self, request: Fork, descriptors: list[int], parent: int, trace: CrashTrace) -> NoReturn:
        status = _CRASHED
        try:
            started = time.monotonic()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._sock.close()
            os.close(self._woken)
            os.close(self._wake)
            if bind_to_parent(parent):
                name_process(f"ryz-rank-{request.rank}")
                write_rank_lines("rank", request.rank)
                trace.enable()
                for _, other in self._traces.values():
                    other.close()
                sock, *others = descriptors
                numbered = dict(zip(request.numbers, others, strict=True))
                status = self._serve(socket.socket(fileno=sock), started, numbered)
        except BaseException:  # nothing may return into the fork server's loop
            log.exception("a rank crashed")
        end_process(status)

    def _kill(self, request: Kill) -> None:
        # a child that ended and was not collected yet keeps its process id, so the id is never reused
        for pid, child in self._children.items():
            if child == request.child:
                os.kill(pid, signal.SIGKILL)

    def _collect_ended(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._report(Ended(self._children.pop(pid), code))
            self._log_trace(pid, code)

    def _log_trace(self, pid: int, code: int) -> None:
        rank, trace = self._traces.pop(pid)
        stack = trace.take_lines()
        if stack:
            name = signal.Signals(-code).name if code < 0 else ""
            log.error(
                "a rank was ended by a signal", role="rank", rank=rank, pid=pid, signal=name, stack=stack
            )

    def _report(self, report: ForkServerReport) -> None:
        try:
            self._sock.send(self._reports.encode(report))
        except (BrokenPipeError, ConnectionResetError):
            return  # the leader is gone; the loop sees that next


def _ignore(*_: object) -> None:
    """A handler, so that the signal wakes `select`."""


def _check_threads() -> None:
    count = len(list(Path("/proc/self/task").iterdir()))
    if count != 1:
        log.error(
            "the fork server has several threads, of which a fork would lose all but one",
            count=count,
            remedy="set RYZ_RANK_START=spawn, which starts each rank as a process of its own",
        )
        end_process(1)


def main() -> int:
    """Runs the fork server; returns the exit code."""
    if not bind_to_parent(int(sys.argv[2])):
        return 0
    name_process("ryz-fork-server")
    write_rank_lines("nursery")
    sock = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a tenth of the time of the import
    from services.worker.engine.rank.rank_process import serve  # noqa: PLC0415 (takes a second; bound to the leader first)

    # objects that exist now are exempt from collection: it would write to their pages, which ranks share
    gc.freeze()
    gc.enable()
    ForkServer(sock, partial(serve, adapt=name_rank_lines)).serve_requests()
    return 0


if __name__ == "__main__":
    end_process(main())
