"""A stack, or a store, that runs for the time of a measurement and leaves nothing behind.

The stack is started with `ryz up`, on free ports and in a state directory of its own.
"""

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.lib.stack import RunningStack
from cli.console import fail
from cli.models.catalogue import DEMO
from cli.stack.host.private import write_private
from cli.stack.servers.redis_server import Store, find_redis, new_store_passwords
from cli.stack.state import StackState, StateDir, log_tail
from shared.host.own_python import module_command, module_environment

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
_STORE_START_S = 10.0
_STORE_BYTES = 2**31


@contextmanager
def own_stack(
    options: Mapping[str, object],
    settings: Mapping[str, str] | None = None,
    *,
    timeout_s: float = START_TIMEOUT_S,
) -> Iterator[RunningStack]:
    """Start a stack and end it with the block. See `StackStarter`.

    Raises:
        CommandError: The stack did not come up; the text ends with what the supervisor wrote.
    """
    if options.get("--engine") != "null" and "--models" not in options:
        options = {"--model": DEMO, **options}
    with tempfile.TemporaryDirectory(prefix="ryz-bench-") as name:
        log = Path(name) / "up.log"
        words = [str(word) for option in options.items() for word in option]
        command = [*module_command("cli"), "up", "--port", "0", "--state-dir", name, *words]
        with log.open("wb") as file:
            # The process group keeps Ctrl-C for the benchmark, which then ends the stack in order. It gets no
            # session of its own, for the reason in `cli/stack/supervision/process.py`.
            up = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=module_environment({**os.environ, **(settings or {})}),
                process_group=0,
            )
        try:
            state_dir = StateDir(Path(name))
            state = _await_ready(up, state_dir, log, timeout_s)
            pids = {one.name: one.pid for one in state.services}

            def services_now() -> dict[str, tuple[int, bool]]:
                now = state_dir.read()
                return {one.name: (one.pid, one.ready) for one in now.services} if now is not None else {}

            yield RunningStack(
                state.url, state.model, pids, state.nats_urls, state.grpc_address, services_now
            )
        finally:
            _end(up, STOP_TIMEOUT_S)


@contextmanager
def own_store() -> Iterator[str]:
    """Start a Redis for KV blocks and end it with the block; gives the URL for a worker."""
    with tempfile.TemporaryDirectory(prefix="ryz-") as name:
        folder = Path(name)
        store = Store(
            "redis-kv", folder, folder / "redis-kv.sock", _STORE_BYTES, new_store_passwords(["worker"])
        )
        for path, text in store.files().items():
            write_private(path, text)
        server = subprocess.Popen(
            [find_redis(), str(store.config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + _STORE_START_S
            while not asyncio.run(store.answers()):
                if time.monotonic() > deadline:
                    fail(f"The store did not answer within {_STORE_START_S:g} s.")
                time.sleep(POLL_S)
            yield store.url("worker")
        finally:
            _end(server, STOP_TIMEOUT_S)


def _await_ready(up: subprocess.Popen[bytes], state_dir: StateDir, log: Path, timeout_s: float) -> StackState:
    deadline = time.monotonic() + timeout_s
    while up.poll() is None and time.monotonic() < deadline:
        state = state_dir.read()
        if state is not None and state.ready:
            return state
        time.sleep(POLL_S)
    why = f"was not ready within {timeout_s:g} s" if up.poll() is None else "did not come up"
    return fail(f"The stack {why}:\n{log_tail(log)}")


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Terminate the process, and kill it after `timeout_s`; services end with their supervisor."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
