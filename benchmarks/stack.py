"""A whole stack for the time of a measurement, in processes and a state directory of its own.

Starts it as a user would (`ryz up`), on free ports, and takes it down again whatever happens. What runs in it
is decided by the supervisor (`cli/supervisor`).
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.console import fail
from cli.supervisor.state import StateDir, log_tail

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningStack:
    """Where it answers, and the process id of each of its services by name."""

    url: str
    model: str
    pids: dict[str, int]


@contextmanager
def started(options: Sequence[str]) -> Iterator[RunningStack]:
    """A stack that is ready; `options` are those of `ryz up` (engine, groups)."""
    with tempfile.TemporaryDirectory(prefix="ryz-bench-") as folder:
        state = StateDir(Path(folder))
        try:
            _ryz(["up", "--port", "0", "--detach", *options], folder, START_TIMEOUT_S)
            now = state.read()
            if now is None:
                fail(f"The stack ended as soon as it was up. Its last words:\n{log_tail(state.log('up'))}")
            yield RunningStack(now.url, now.model, {one.name: one.pid for one in now.services})
        finally:
            if state.read() is not None:
                _ryz(["down"], folder, STOP_TIMEOUT_S)


def _ryz(arguments: list[str], folder: str, timeout_s: float) -> None:
    command = [sys.executable, "-m", "cli", *arguments, "--state-dir", folder]
    # a session of its own: Ctrl-C is for the benchmark, which then takes the stack down in order
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        fail(f"`ryz {' '.join(arguments)}` did not end within {timeout_s:g} s.")
    if done.returncode:
        fail(f"`ryz {' '.join(arguments)}` failed with exit code {done.returncode}:\n{done.stdout.strip()}")
