"""One child process: started with its own process group and log file, and ended with all it started."""

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cli.stack.forking.adopted import AdoptedProcess
from cli.stack.forking.messages import ForkService
from cli.stack.forking.servers import ForkServers
from cli.stack.host.private import open_log
from cli.stack.state import older_log
from cli.stack.supervision import child
from cli.stack.supervision.start_problem import start_problem
from shared.host.own_python import module_environment

MAX_LOG_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """How one service is run.

    Attributes:
        probe: Returns whether it answers and takes work.
        stop_phase: Lower phases are drained first.
        grace_s: Seconds that its end may take before it is killed.
        env: Variables beside those of the supervisor.
        module: What `command` runs, whose `main` a fork server calls; empty: it cannot be forked.
        forked_from: The fork server that has imported `module`.
        model: The name of the model that it serves; empty: none.
        cores: On which it may run; empty: on all of the supervisor's.
        listens_at: Address and port of the socket that the supervisor opens and the service accepts from.
            While the service is started again, new connections wait there instead of being refused.
    """

    name: str
    command: list[str]
    probe: Callable[[], Awaitable[bool]]
    stop_phase: int
    grace_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    listens_at: tuple[str, int] | None = None
    module: str = ""
    forked_from: str = ""
    model: str = ""
    cores: tuple[int, ...] = ()


class ServiceProcess:
    """A service's process, which may be started again. One event loop only."""

    def __init__(
        self,
        spec: ServiceSpec,
        log: Path,
        listener: socket.socket | None = None,
        forks: ForkServers | None = None,
    ) -> None:
        self.spec = spec
        self.log = log
        self._listener = listener
        self._forks = forks
        self._process: asyncio.subprocess.Process | AdoptedProcess | None = None
        self._log_begin = 0  # bytes of the log that are of earlier starts

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process. The terminal's Ctrl-C does not reach it: it has a process group of its own.

        No session of its own: Linux shares out the cores by session first where autogroups are on (`man 7
        sched`), and a leader would wait for a core because of what its ranks took, however nice they are.
        """
        environment = module_environment({**os.environ, **self.spec.env})
        with os.fdopen(open_log(self.log), "ab") as log:
            self._log_begin = log.tell()
            if not self.spec.module or not await self._fork(environment, log.fileno()):
                await self._execute(environment, log.fileno())

    async def _fork(self, environment: dict[str, str], log: int) -> bool:
        """Have a fork server start it; False if there is none."""
        if self._forks is None or not await self._forks.is_ready(self.spec.forked_from):
            return False
        listener = self._listener
        request = ForkService(
            f"ryz-{self.spec.name}",
            " ".join(self.spec.command),
            self.spec.module,
            environment,
            listener is not None,
            self.spec.cores,
        )
        descriptors = [log] if listener is None else [log, listener.fileno()]
        forking = asyncio.create_task(self._forks.fork(self.spec.forked_from, request, descriptors))
        try:
            await asyncio.shield(forking)
        finally:  # also when this is cancelled: there is a process then, which is to be ended
            self._process = await forking or self._process
        return forking.result() is not None

    async def _execute(self, environment: dict[str, str], log: int) -> None:
        """Start it by an interpreter of its own."""
        listener = self._listener.fileno() if self._listener is not None else -1
        passed = [listener] if listener >= 0 else []
        wrapper = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), str(listener)]
        wrapper.append(",".join(map(str, self.spec.cores)))
        self._process = await asyncio.create_subprocess_exec(
            *wrapper,
            *self.spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            process_group=0,
            pass_fds=passed,
        )

    async def wait(self) -> int:
        """Return the exit code, negative for a signal, and kill the rest of its process group."""
        assert self._process is not None
        code = await self._process.wait()
        self.kill()
        return code

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.running and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and everything in its process group."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def start_problem(self) -> str:
        """Return why the last process could not start, if it has said so."""
        return start_problem(self.log, self._log_begin)

    def trim_log(self) -> None:
        """Move a log over `MAX_LOG_BYTES` into one older file; the process goes on appending."""
        with suppress(FileNotFoundError):
            if self.log.stat().st_size <= MAX_LOG_BYTES:
                return
            older = older_log(self.log)
            older.unlink(missing_ok=True)
            try:
                shutil.copyfile(self.log, older)
            except OSError:  # the disk is full, so the old lines are lost
                older.unlink(missing_ok=True)
            os.truncate(self.log, 0)


def explain_exit(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
