"""A helper process of a measurement: one object is made there, and its methods are called from here.

Coroutines run on one event loop of that process, which stands still between calls.

Peers and probes run this way, so that their threads, memory and crashes are their own. A child cannot outlive
the command: the kernel ends it with its parent, and `close` ends it before.
"""

import asyncio
import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from benchmarks.lib.measuring import BenchError
from shared.host.own_python import module_command, module_environment

_PR_SET_PDEATHSIG = 1
_EXIT_WAIT_S = 5.0


class ChildObject:
    """A process that holds one object.

    Args:
        maker: `module:name` of the class or function that makes the object there.
        arguments: Its keyword arguments; they are pickled.
        environment: Variables beside those of this process.
        inherit: File descriptors that the child gets, by the same numbers.
        python: The interpreter that runs it; None: this one. Another one needs only what the object imports.
    """

    def __init__(
        self,
        maker: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
        python: Path | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            self._process = subprocess.Popen(
                [
                    *module_command("benchmarks.lib.child", python),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout of the command is for its report
                pass_fds=(theirs.fileno(), *inherit),
                env=module_environment({**os.environ, **(environment or {})}),
                process_group=0,  # Ctrl-C is for the command, which ends its children
            )
        self.name = maker.partition(":")[2]
        self._connection.send((maker, dict(arguments)))

    def send(self, method: str, *arguments: Any) -> None:
        """Start a call; `receive` has its outcome. One at a time."""
        try:
            self._connection.send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise BenchError(self._ended()) from None

    def receive(self, timeout_s: float) -> Any:
        """Return the outcome of the making or of the last call.

        Raises:
            BenchError: The object raised, or the process ended or did not answer in time.
        """
        try:
            if not self._connection.poll(timeout_s):
                raise BenchError(f"{self.name} did not answer within {timeout_s:g} s")
            problem, value = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise BenchError(self._ended()) from None
        if problem:
            raise BenchError(problem)
        return value

    def call(self, method: str, *arguments: Any, timeout_s: float = 600.0) -> Any:
        """Call a method there and wait for its result. Raises `BenchError` like `receive`."""
        self.send(method, *arguments)
        return self.receive(timeout_s)

    def close(self) -> None:
        """End the process. May be called twice, and while another thread waits in `receive`."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _ended(self) -> str:
        try:
            code = self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its connection"
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the process of {self.name} ended: {how}"


async def receive_all(children: Sequence[ChildObject], timeout_s: float) -> list[Any]:
    """Return the outcomes of a call that was sent to all children. Raises `BenchError`."""
    return [await asyncio.to_thread(child.receive, timeout_s) for child in children]


def _serve(connection: Connection) -> None:
    maker, arguments = connection.recv()
    module, _, name = maker.partition(":")
    made: Any = None

    def make() -> None:
        nonlocal made
        made = getattr(importlib.import_module(module), name)(**arguments)

    with _Coroutines() as coroutines:
        if not _answer(connection, make, coroutines):
            return
        while True:
            method, values = connection.recv()
            _answer(connection, partial(getattr(made, method), *values), coroutines)


class _Coroutines:
    """Runs coroutines on one loop, which is made for the first one: a peer's Python may have no uvloop."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._loop: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            import uvloop  # noqa: PLC0415

            self._loop = self._stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return self._loop.run(work)


def _answer(connection: Connection, work: Callable[[], Any], coroutines: _Coroutines) -> bool:
    try:
        value = work()
        if asyncio.iscoroutine(value):
            value = coroutines.run(value)
    except Exception as error:
        known = type(error).__module__.startswith(("benchmarks.", "services."))
        connection.send((str(error) if known else f"{type(error).__name__}: {error}", None))
        return False
    connection.send(("", value))
    return True


def main() -> None:
    """Serve calls; the arguments are the socket's descriptor and the parent's process id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return  # the parent ended before the request above
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return  # the parent has closed the connection


if __name__ == "__main__":
    main()
