"""A process that is forked before its parent has threads, and begins its work when it gets an order.

It shares the parent's memory and needs no imports: an interpreter of its own takes half a second of a core
and 30 MiB.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from services.worker.forking.fork_here import can_fork
from services.worker.forking.forked_process import ForkedProcess, run_forked, run_module

_PR_SET_PDEATHSIG = 1
_MAX_PACKET_BYTES = 4096
_MAX_DESCRIPTORS = 8
_NEVER_ORDERED = 0


class EarlyFork:
    """Waits for its order, and ends with the parent or with `close`.

    Args:
        module: An imported module; its `main` is run.
    """

    def __init__(self, module: str) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            run_forked(lambda: _await_order(module, self._sock, theirs, parent))
        theirs.close()
        self._process = ForkedProcess(pid)

    def order(self, descriptors: Sequence[int], arguments: Sequence[str]) -> ForkedProcess:
        """Have it run `main`, whose arguments are these descriptors and then the others. Once only.

        Raises:
            OSError: The process is gone.
        """
        try:
            socket.send_fds(self._sock, [msgspec.msgpack.encode(arguments)], descriptors)
        except OSError:
            self.close()
            raise
        self._sock.close()
        return self._process

    def close(self) -> None:
        """End it, if it got no order."""
        if self._sock.fileno() >= 0:
            self._sock.close()
            self._process.kill()
            self._process.wait()


def fork_early(module: str) -> EarlyFork | None:
    """Return such a process; None if this one has threads, or none can be forked."""
    if not can_fork(module):
        return None
    try:
        return EarlyFork(module)
    except OSError:  # too many processes, or no memory: they start by interpreters later, and say so
        return None


def _await_order(module: str, parents: socket.socket, sock: socket.socket, parent: int) -> int:
    parents.close()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return _NEVER_ORDERED
    os.setpgid(0, 0)  # Ctrl-C in a terminal is for the parent
    gc.freeze()  # a collection would write to pages that are shared with the parent
    data, descriptors, _, _ = socket.recv_fds(sock, _MAX_PACKET_BYTES, _MAX_DESCRIPTORS)
    if not data:
        return _NEVER_ORDERED
    sock.close()
    libc.prctl(_PR_SET_PDEATHSIG, 0)  # with its order it decides itself when it ends
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    arguments = msgspec.msgpack.decode(data, type=list[str])
    return run_module(module, [*map(str, descriptors), *arguments])
