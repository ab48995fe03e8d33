"""A program that was forked: what a test that started it can do with it."""

import os
import select
import signal
import socket
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from tests.kits.programs.messages import MAX_PACKET_BYTES, Ended, Report, Run, Started


class ForkedProgram:
    """The part of `subprocess.Popen` that tests need.

    Args:
        address: Where the server's socket is.
        descriptors: Its stdin, stdout and stderr.

    Raises:
        OSError: The server is gone.
    """

    def __init__(self, address: str, request: Run, descriptors: Sequence[int]) -> None:
        self.args = request.command
        self.returncode: int | None = None
        self._reports = msgspec.msgpack.Decoder(Report)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        socket.send_fds(self._connection, [msgspec.msgpack.encode(request)], descriptors)
        data, handles, _, _ = socket.recv_fds(self._connection, MAX_PACKET_BYTES, 1)
        started = self._reports.decode(data)
        assert isinstance(started, Started)
        self.pid = started.pid
        self._handle = handles[0]
        self._close = weakref.finalize(self, _close, self._connection, self._handle)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._collect()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._collect()
        assert self.returncode is not None
        return self.returncode

    def fileno(self) -> int:
        """A descriptor that is readable when the program has ended."""
        return self._connection.fileno()

    def send_signal(self, signum: int) -> None:
        """Send a signal; nothing happens when it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signum)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _collect(self) -> None:
        ended = self._reports.decode(self._connection.recv(MAX_PACKET_BYTES))
        assert isinstance(ended, Ended)
        self.returncode = ended.code
        self._close()


def _close(connection: socket.socket, handle: int) -> None:
    """Close what stands for a program, which ends it if it still runs."""
    connection.close()
    os.close(handle)
