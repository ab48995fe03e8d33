"""Starts our modules as programs: forked where a run of tests has a server for it, else by an interpreter."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Protocol

from cli.stack.forking.shown_environment import ROOM
from cli.stack.plan import RANK_MODULES
from shared.host.own_python import module_command, module_environment
from tests.kits.programs.client import ForkedProgram
from tests.kits.programs.messages import ADDRESS, Run
from tests.kits.waiting import until

ROOT = Path(__file__).parents[3]
IMPORTED = (
    "services.gateway", "services.router", "services.kvstate", "services.worker.__main__", *RANK_MODULES,
    "services.worker.leader.grammar_trials.trial_process", "cli",
    "tests.kits.gateway.gateway_main", "tests.kits.programs.forked_up",
)  # fmt: skip
# as for the fork servers of a stack (cli/stack/forking/client.py)
QUIET = {"OPENBLAS_NUM_THREADS": "1", "GOMP_SPINCOUNT": "2000", "SPT_NOENV": "1"} | ROOM
OF_INTERPRETERS = (
    "PYTHON",
    "RYZ_COMPILED",
    "LD_",
    "MALLOC_",
    "OMP_",
    "GOMP_",
)  # are read before our code runs


class Program(Protocol):
    """What `subprocess.Popen` and `ForkedProgram` have in common."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start_program(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    folder: Path = ROOT,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | int = 1,
    stderr: IO[bytes] | int = 2,
    prefix: Sequence[str] = (),
) -> Program:
    """Start `python -P -m module`.

    Args:
        env: All of its variables.
        stdin: Without it the program reads nothing.
        prefix: Put before the command, as to run it in another namespace; it is not forked then.
    """
    command = [*prefix, *module_command(module), *arguments]
    environment = module_environment(env)
    environment.pop(ADDRESS, None)
    with open(os.devnull, "rb") as null:
        if prefix or not is_forked(env):
            return subprocess.Popen(
                command, env=environment, cwd=folder, stdin=stdin or null, stdout=stdout, stderr=stderr
            )
        request = Run(module, list(arguments), command, environment, str(folder), os.nice(0))
        outputs = [one if isinstance(one, int) else one.fileno() for one in (stdout, stderr)]
        return ForkedProgram(os.environ[ADDRESS], request, [(stdin or null).fileno(), *outputs])


def run_program(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    folder: Path = ROOT,
    stdin: str = "",
    timeout_s: float,
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end.

    Raises:
        subprocess.TimeoutExpired: It was killed after this time.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        program = start_program(
            module, *arguments, env=env, folder=folder, stdin=given, stdout=out, stderr=err
        )
        try:
            code = program.wait(timeout_s)
        finally:
            program.kill()
            program.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess([module, *arguments], code, *texts)


class ProgramServer:
    """Starts the server, which imports while this process goes on, and gives its address to tests.

    Args:
        modules: What it imports, packages with all of their modules.
    """

    def __init__(self, modules: Sequence[str] = IMPORTED) -> None:
        self._folder = tempfile.mkdtemp(prefix="ryz-programs-")
        address = f"{self._folder}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [*module_command("tests.kits.programs.server"), str(listener.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                env=module_environment(os.environ | QUIET),
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        os.environ[ADDRESS] = address

    def end(self) -> None:
        """End the server, and with it what it has forked."""
        os.environ.pop(ADDRESS)
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder)


class AsyncProgram:
    """A program whose stderr is read; with the part of `asyncio.subprocess.Process` that tests need."""

    def __init__(self, program: Program, stderr: asyncio.StreamReader) -> None:
        self._program = program
        self.stderr = stderr
        self.pid = program.pid
        self.send_signal = program.send_signal
        self.terminate = program.terminate
        self.kill = program.kill

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._program.poll()

    async def wait(self) -> int:
        """Return the exit code."""
        await until(lambda: self.returncode is not None, timeout_s=None)
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[None, bytes]:
        """Return all that it has written to stderr and was not read yet, when it has ended."""
        written = await self.stderr.read()
        await self.wait()
        return None, written


@asynccontextmanager
async def async_program(module: str, *arguments: str, env: Mapping[str, str]) -> AsyncIterator[AsyncProgram]:
    """Start a program whose stderr is read; it is killed at the end, if it still runs."""
    reading, writing = os.pipe()
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    try:
        with os.fdopen(writing, "wb") as stderr:
            program = AsyncProgram(start_program(module, *arguments, env=env, stderr=stderr), reader)
        try:
            yield program
        finally:
            program.kill()
            await program.communicate()
    finally:
        transport.close()


def is_forked(env: Mapping[str, str]) -> bool:
    """Whether a program with these variables is forked: there is a server, and no interpreter to set up."""
    if ADDRESS not in os.environ:
        return False
    own, environment = module_environment(os.environ), module_environment(env)
    names = {name for name in own.keys() | environment.keys() if name.startswith(OF_INTERPRETERS)}
    return all(own.get(name) == environment.get(name) for name in names)
