"""A whole stack for the time of a measurement, in processes and a state directory of its own.

Starts it as a user would (`ryz up`), on free ports, and takes it down again whatever happens. What runs in it
is decided by the supervisor (`cli/stack`).
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cli.console import fail
from cli.stack.state import StackState, StateDir, log_tail
from shared.host.own_python import module_command, module_environment

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunningStack:
    """Where it answers, and the process id of each of its services by name; the broker by user."""

    url: str
    model: str
    pids: dict[str, int]
    nats_urls: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def started(
    options: Sequence[str], settings: Mapping[str, str] | None = None, timeout_s: float = START_TIMEOUT_S
) -> Iterator[RunningStack]:
    """A stack that is ready; `options` are those of `ryz up` (engine, groups), `settings` RYZ_ variables.

    Raises `CommandError` with what the supervisor said when it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="ryz-bench-") as name:
        folder = Path(name)
        said = folder / "up.log"
        command = [*module_command("cli"), "up", "--port", "0", "--state-dir", name, *options]
        with said.open("wb") as log:
            # Ctrl-C is for the benchmark, which then takes the stack down in order; but no session of its
            # own, see `cli/stack/process.py`
            up = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=module_environment({**os.environ, **(settings or {})}),
                process_group=0,
            )
        try:
            state = _await_ready(up, StateDir(folder), said, timeout_s)
            pids = {one.name: one.pid for one in state.services}
            yield RunningStack(state.url, state.model, pids, state.nats_urls)
        finally:
            _stop(up)


def _await_ready(up: subprocess.Popen[bytes], place: StateDir, said: Path, timeout_s: float) -> StackState:
    deadline = time.monotonic() + timeout_s
    while up.poll() is None and time.monotonic() < deadline:
        state = place.read()
        if state is not None and state.ready:
            return state
        time.sleep(POLL_S)
    why = f"was not ready within {timeout_s:g} s" if up.poll() is None else "did not come up"
    return fail(f"The stack {why}:\n{log_tail(said)}")


def _stop(up: subprocess.Popen[bytes]) -> None:
    """Lets the supervisor end everything; its services end with it if it has to be killed."""
    up.terminate()
    try:
        up.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        up.kill()
        up.wait()
