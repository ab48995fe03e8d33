"""Gives our own broker the bus users of the records, by a file in the state directory and a reload.

The broker cannot ask for records: they are in its own streams. So the last copy of its users is kept in
`bus-users.json`, from which its configuration is made at the next start.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cli.console import fail
from cli.stack.host.private import write_private
from cli.stack.state import StackState, StateDir
from shared.accounts.bus_users import users_let_in
from shared.accounts.register import AccountRegister
from shared.bus import nats_conf
from shared.bus.users import BusUser, BusUsers, as_text, read_users
from shared.client.calls.accounts_client import AccountsClient
from shared.errors import InvalidRequest
from shared.host.local_stack import USERS_FILE
from shared.messages import KeyRecord

NATS_USERS_FILE = "nats-users.conf"  # included by nats.conf, and written anew while the broker runs

BROKER = "nats"  # the supervisor's name of it


def bus_users(state_dir: Path) -> BusUsers:
    """Return the users that were known last; fail with the remedy when the file is damaged."""
    try:
        return read_users(_file(state_dir))
    except InvalidRequest as error:
        fail(f"{error.message}. Remove it: users that have a record (`ryz keys list`) come back.")


def users_of(register: AccountRegister, now_s: float) -> list[BusUser]:
    """Return the users that a broker should let in."""
    return [_user(record) for record in users_let_in(register, now_s)]


async def import_users(client: AccountsClient, state_dir: StateDir) -> None:
    """Make records of the users that an earlier release kept in that directory.

    Raises:
        RyzError: The records cannot be made.
    """
    earlier = [user for user in bus_users(state_dir.path).users if not user.key_id]
    if earlier:
        await client.import_bus_users(earlier)


def give_broker(state_dir: StateDir, register: AccountRegister, now_s: float) -> StackState | None:
    """Write the users of the records, and have our own broker read them if they have changed.

    Returns:
        The stack whose broker has them; None if none of our own runs with that state directory.
    """
    state_dir.make()
    with _alone(state_dir.path):
        known = bus_users(state_dir.path)
        earlier = [user for user in known.users if not user.key_id and register.bus_user(user.name) is None]
        users = BusUsers([*earlier, *users_of(register, now_s)])
        if users != known:
            _replace(_file(state_dir.path), as_text(users))
        state = state_dir.read()
        if state is None or not state.nats_urls:
            return None
        config, text = state_dir.path / NATS_USERS_FILE, nats_conf.render(users.hashes())
        if config.exists() and config.read_text() == text:
            return state
        _replace(config, text)
        for service in state.services:
            if service.name == BROKER:
                _reload(service.pid, state_dir.path / "nats.conf")
        return state


def _file(state_dir: Path) -> Path:
    return StateDir(state_dir).path / USERS_FILE


def _user(record: KeyRecord) -> BusUser:
    terms = record.bus_user
    assert terms is not None
    return BusUser(
        terms.user, record.tenant, terms.password_hash, terms.max_rps, terms.max_priority, record.key_id
    )


def _reload(pid: int, config: Path) -> None:
    """Have the broker read its configuration again; a broker that is just starting reads it anyway."""
    import psutil  # noqa: PLC0415 (slow to import)

    with suppress(psutil.Error, ProcessLookupError):
        if pid and str(config) in psutil.Process(pid).cmdline():
            os.kill(pid, signal.SIGHUP)


def _replace(path: Path, text: str) -> None:
    """Replace the file in one step, so that a broker never reads half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    write_private(draft, text)
    draft.replace(path)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a lock: of two processes at once, one would lose its change."""
    lock = os.open(StateDir(directory).logs, os.O_RDONLY | os.O_DIRECTORY)  # its supervisor locks the other
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
