"""The supervisor's side of a fork server."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from cli.stack.forking.adopted import AdoptedProcess
from cli.stack.forking.messages import MAX_PACKET_BYTES, ForkService, Imported, Report, ServiceForked
from cli.stack.forking.shown_environment import ROOM
from cli.stack.host.private import open_log
from shared.host.own_python import module_command, module_environment

REPLY_S = 10.0  # a fork takes milliseconds; a server that has not answered by then stands still


class ForkServerGone(Exception):
    """The fork server has ended or stands still; services start without it."""


def start_server(
    arguments: Sequence[str], environment: Mapping[str, str], passed: int, log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start `server.py` by an interpreter of its own, which keeps this descriptor."""
    return subprocess.Popen(
        [*module_command("cli.stack.forking.server"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        pass_fds=[passed],
        process_group=0,
    )


class ServiceForkServer:
    """A process that has imported some modules and forks services from it. One event loop only.

    Args:
        modules: What it imports.
        log: Where it writes.

    Attributes:
        log: Where it writes.
        in_flight: A fork is asked for: its process may be a child already whose id is not known here.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, modules: Sequence[str], log: Path) -> None:
        self.log = log
        self.in_flight = False
        self._reports = msgspec.msgpack.Decoder(Report)
        self._lock = asyncio.Lock()
        self._imported = False
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        # a thread pool of BLAS would be lost by a fork; OpenMP spins for milliseconds at each barrier, and
        # reads this when torch is imported (see `ProcessGroupManager`)
        quiet = {"OPENBLAS_NUM_THREADS": "1", "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "2000")}
        kept = {"SPT_NOENV": "1"}  # setproctitle leaves the environment that the kernel shows alone
        with theirs, os.fdopen(open_log(log), "ab") as file:
            arguments = [str(theirs.fileno()), str(os.getpid()), *modules]
            environment = module_environment({**os.environ, **quiet, **kept, **ROOM})
            self._process = start_server(arguments, environment, theirs.fileno(), file)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def import_modules(self) -> None:
        """Return when all modules are imported.

        Raises:
            ForkServerGone: The process has ended before.
        """
        async with self._lock:
            if not self._imported:
                report = await self._read_report()
                assert isinstance(report, Imported)
                self._imported = True

    async def fork(self, request: ForkService, descriptors: Sequence[int]) -> AdoptedProcess:
        """Fork a service, and return when it runs. After `import_modules`; not to be cancelled.

        Args:
            descriptors: Of its output and, if it listens, of its socket.

        Raises:
            ForkServerGone: The process has ended, or does not answer.
        """
        async with self._lock:
            self.in_flight = True
            try:
                socket.send_fds(self._sock, [msgspec.msgpack.encode(request)], descriptors)
                async with asyncio.timeout(REPLY_S):
                    report = await self._read_report()
                assert isinstance(report, ServiceForked)
                return AdoptedProcess(report.pid)
            except (OSError, TimeoutError) as error:
                self.close()
                raise ForkServerGone(str(error) or "it stands still") from error
            finally:
                self.in_flight = False

    async def _read_report(self) -> Report:
        try:
            data = await asyncio.get_running_loop().sock_recv(self._sock, MAX_PACKET_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise ForkServerGone("it has ended")
        report: Report = self._reports.decode(data)
        return report

    def close(self) -> None:
        """End the process; services that it forked go on."""
        self._sock.close()
        self._process.kill()  # it has nothing to end in order
        self._process.wait()
