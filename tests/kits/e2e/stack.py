"""Starts stacks with the `ryz` command, and looks for what they might leave behind."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from cli.stack.state import StackState, StateDir
from cli.stack.supervision import child
from cli.status.query import find_broker, query_status
from tests.kits.programs.launch import Program, is_forked, run_program, start_program
from tests.kits.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[3]
START_S = 180.0
_ANSWERING = ("gateway", "router", "kvstate", "worker")
RYZ = [sys.executable, "-P", "-m", "cli"]
# heartbeats are half of the CPU time of an idle stack, several of which run beside other tests
CALM = {"RYZ_HEARTBEAT_INTERVAL_MS": "200"}


def ryz(
    *args: str, cwd: Path, stdin: str = "", env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs a command of `ryz` to its end."""
    given = {**os.environ, **(env or {})}
    return run_program("cli", *args, env=given, folder=cwd, stdin=stdin, timeout_s=START_S)


class Stack:
    """A stack in the foreground of a process of its own, with its state in `folder`/.ryz.

    Args:
        folder: Where it is started.
        options: Of `ryz up`. Without `--routers` a calm stack has one router.
        env: Settings.
        calm: Whether heartbeats are rare. Tests of lost groups need the usual ones, and two routers.
        forked: Whether it may be forked; else `ryz up` and its fork servers have interpreters of their own,
            as they have for users.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        env: dict[str, str] | None = None,
        calm: bool = True,
        forked: bool = True,
    ) -> None:
        self.folder = folder
        self.state_dir = StateDir(folder / ".ryz")
        self.output = folder / "up.txt"
        self.process: Program
        if "--tensor-parallel" not in options and "--models" not in options:
            options = (*options, "--tensor-parallel", "2")
        if not {"--model", "--models", "null"} & set(options):
            options = (*options, "--model", "demo")
        if calm and "--routers" not in options:
            options = (*options, "--routers", "1")
        # commands of other tests are not to find it from their folders
        of_its_own = {"XDG_STATE_HOME": str(folder.parent / f"{folder.name}-state-home")}
        given = {**os.environ, **of_its_own, **(CALM if calm else {}), **(env or {})}
        words = ["up", "--port", "0", *options]
        with self.output.open("wb") as file:
            # it gets SIGTERM if the tests are killed, so that it never outlives them
            if forked and is_forked(given):
                self.process = start_program(
                    "tests.kits.programs.forked_up",
                    *words,
                    env=given,
                    folder=folder,
                    stdout=file,
                    stderr=file,
                )
            else:
                bound = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), "-1", ""]
                self.process = subprocess.Popen(
                    [*bound, *RYZ, *words],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=given,
                    start_new_session=True,
                )
        self.family: list[psutil.Process] = []

    def await_ready(self) -> Self:
        """Returns when the stack is ready; fails with its output when it ends before."""
        wait_for(self._is_ready, f"{self.folder} has a stack that is ready", START_S)
        self.remember()
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"`ryz up` ended:\n{self.output.read_text()}"
        state = self.state_dir.read()
        return state is not None and state.ready

    def remember(self) -> None:
        """Notes all processes of the stack as they are now."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    @property
    def state(self) -> StackState:
        """The stack as its state file has it."""
        state = self.state_dir.read()
        assert state is not None
        return state

    def status(self) -> dict[str, Any]:
        """What `ryz status --json` prints, without a new process: tests that wait ask many times."""

        def ask() -> dict[str, Any]:
            return asyncio.run(query_status(find_broker("", self.state_dir), self.state_dir)).as_dict()

        with ThreadPoolExecutor(1) as pool:  # the caller may have an event loop of its own
            return pool.submit(ask).result()

    def whole_status(self) -> dict[str, Any]:
        """The same, once every service that the supervisor runs has answered."""
        status: dict[str, Any] = {}

        def all_answered() -> bool:
            status.update(self.status())
            running = {one.pid for one in self.state.services if one.name.startswith(_ANSWERING)}
            return running <= {one["pid"] for one in status["services"]}

        wait_for(all_answered, "all services answer")
        return status

    def pid_of(self, name: str) -> int:
        """The process of a service."""
        return next(service.pid for service in self.state.services if service.name == name)

    def leftovers(self) -> list[str]:
        """Processes that were remembered and still run."""
        left = []
        for one in self.family:
            with suppress(psutil.NoSuchProcess):  # also that of a zombie
                if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{one.pid} {one.name()}: {' '.join(one.cmdline())}")
        return left

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever still runs is killed; its children end with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def end(self) -> int:
        """Ends the stack in good order; returns the exit code. May be called when it has ended."""
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE_S)
