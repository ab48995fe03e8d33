"""Keeps the users in the state directory, and has a broker that runs there know of a change at once."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cli.console import fail
from cli.stack.host.private import write_private
from cli.stack.state import StackState, StateDir
from shared.bus import nats_conf
from shared.bus.users import BusUsers, as_text, read_users
from shared.errors import InvalidRequest
from shared.host.local_stack import USERS_FILE

NATS_USERS_FILE = "nats-users.conf"  # included by nats.conf, and written anew while the broker runs

BROKER = "nats"  # the supervisor's name of it


def users_file(state_dir: Path) -> Path:
    """Return the file of the users of the stack in that directory."""
    return StateDir(state_dir).path / USERS_FILE


def bus_users(state_dir: Path) -> BusUsers:
    """Return the users of that stack; fail with the remedy when the file is damaged."""
    try:
        return read_users(users_file(state_dir))
    except InvalidRequest as error:
        fail(f"{error.message}. Put it right, or remove it and add the users again.")


def change(state_dir: StateDir, to: Callable[[BusUsers], BusUsers]) -> StackState | None:
    """Change the users and write them; return the stack whose broker has loaded them, if one runs."""
    state_dir.make()
    with _alone(state_dir.path):
        users = to(bus_users(state_dir.path))
        _replace(users_file(state_dir.path), as_text(users))
        state = state_dir.read()
        if state is None or not state.nats_urls:
            return None
        _replace(state_dir.path / NATS_USERS_FILE, nats_conf.render(users.hashes()))
        for service in state.services:
            if service.name == BROKER:
                _reload(service.pid, state_dir.path / "nats.conf")
        return state


def _reload(pid: int, config: Path) -> None:
    """Have the broker read its configuration again; a broker that is just starting reads it anyway."""
    import psutil  # noqa: PLC0415 (slow to import)

    with suppress(psutil.Error, ProcessLookupError):
        if pid and str(config) in psutil.Process(pid).cmdline():
            os.kill(pid, signal.SIGHUP)


def _replace(path: Path, text: str) -> None:
    """Replace the file in one step, so that a broker or a router never reads half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    write_private(draft, text)
    draft.replace(path)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a lock: of two commands at once, one would lose its change."""
    lock = os.open(directory / f"{USERS_FILE}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
