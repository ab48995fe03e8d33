"""Finds what a log of an earlier release holds and its Redis did not read back, and writes a new log.

Those releases gave Redis's user `default` no rights, and as that user Redis reads its log: at each start it
refused every transaction in it. All of it is still in the log, up to the last rewrite.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from cli.console import fail
from cli.sessions.recovery.append_only_log import LOG_DIR, AppendOnlyLog, DamagedLog, find_log
from cli.sessions.recovery.stored_sessions import StoredSessions, read_stored, recount
from cli.stack.servers.redis_server import find_redis

MARKER = "ryz-sessions"  # in a directory whose log this release has written or accepted
_ACCEPTED = "2\n"

_POLL_S = 0.05
_STOP_S = 30.0


@contextmanager
def scratch_redis(directory: Path) -> Iterator[redis.Redis]:
    """Runs a Redis for this user alone, on a Unix socket, with the log in `directory`; ends it afterwards.

    It gives a connection as soon as the log has been read.

    Raises:
        CommandError: It cannot read the log.
    """
    with tempfile.TemporaryDirectory(prefix="ryz-") as folder:
        socket, log_file = Path(folder) / "redis.sock", directory / "scratch.log"
        options = {
            "--port": "0", "--unixsocket": str(socket), "--unixsocketperm": "700", "--dir": str(directory),
            "--appendonly": "yes", "--save": "", "--auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        command = [find_redis(), *(part for pair in options.items() for part in pair)]
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            with redis.Redis(unix_socket_path=str(socket)) as client:
                _await_loaded(process, client, log_file)
                yield client
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
            process.wait()


def rewrite_log(client: redis.Redis) -> None:
    """Replaces the log by one that holds just what this Redis has in memory."""
    before = int(client.info("persistence")["aof_rewrites"])
    client.bgrewriteaof()
    while True:
        state = client.info("persistence")
        if int(state["aof_rewrites"]) > before and not state["aof_rewrite_in_progress"]:
            break
        time.sleep(_POLL_S)
    if state["aof_last_bgrewrite_status"] != "ok":
        fail("The new log could not be written; is there room on the disk? Nothing was changed.")


def _await_loaded(process: "subprocess.Popen[bytes]", client: redis.Redis, log_file: Path) -> None:
    while True:
        if process.poll() is not None:
            fail(f"Redis cannot read the log; nothing was changed. It said:\n{log_file.read_text()[-2000:]}")
        try:
            client.ping()
            return
        except redis.exceptions.ConnectionError:  # also while it loads
            time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class OldLog:
    """What is in the log of a directory.

    Attributes:
        missing: Stored, and not read back: what can be brought back.
        in_use: What its Redis had in the end.
        rewritten_at: When a rewrite last dropped what had not been read back, in seconds since 1970; 0: it
            was never rewritten.
    """

    missing: StoredSessions = field(default_factory=StoredSessions)
    in_use: StoredSessions = field(default_factory=StoredSessions)
    rewritten_at: float = 0.0


def is_accepted(directory: Path) -> bool:
    """Returns whether this release may simply use the log of that directory."""
    return (directory / MARKER).exists()


def accept(directory: Path) -> None:
    """Marks the log of that directory as one that is read back as a whole."""
    (directory / MARKER).write_text(_ACCEPTED)


def examine(directory: Path) -> OldLog:
    """Reads copies of the log, once whole and once as an earlier release did.

    Raises:
        CommandError: It cannot be read, or there is no room for a copy.
    """
    with _readable(directory) as log:
        if log is None or is_accepted(directory):
            return OldLog()
        rewritten_at = log.base.stat().st_mtime if log.base and log.rewrites else 0.0
        if log.restarts() == 0:
            return OldLog(rewritten_at=rewritten_at)
        with _copy(directory, log, last_run_only=False) as copy, scratch_redis(copy) as client:
            everything = read_stored(client)
        with _copy(directory, log, last_run_only=True) as copy, scratch_redis(copy) as client:
            in_use = read_stored(client)
    return OldLog(everything.without(in_use), in_use, rewritten_at)


def replace_log(directory: Path, *, restore: bool) -> Path:
    """Writes a new log with all that was stored, or with what is in use alone.

    Args:
        directory: Directory of Redis. No process may use the log in it.
        restore: Bring back what is missing.

    Returns:
        Where the old log is kept.

    Raises:
        CommandError: A Redis uses it, it cannot be read, or there is no room for a copy.
    """
    if pid := _user_of(directory):
        fail(f"Process {pid} uses the log in {directory}: stop the stack first, with `ryz down` or Ctrl-C.")
    with _readable(directory) as log:
        if log is None:
            fail(f"There is no log of Redis in {directory}.")
        with _copy(directory, log, last_run_only=not restore) as copy:
            with scratch_redis(copy) as client:
                recount(client)
                rewrite_log(client)
            kept = directory / f"{LOG_DIR}.before-{time.strftime('%Y%m%d-%H%M%S')}"
            (directory / LOG_DIR).rename(kept)
            (copy / LOG_DIR).rename(directory / LOG_DIR)
    accept(directory)
    return kept


@contextmanager
def _readable(directory: Path) -> Iterator[AppendOnlyLog | None]:
    """Gives the log of that directory; trouble with files ends the command."""
    try:
        yield find_log(directory)
    except DamagedLog as error:
        fail(f"{error}. Nothing was changed.")
    except OSError as error:
        fail(f"The log in {directory} cannot be copied: {error.strerror or error}. Nothing was changed.")


@contextmanager
def _copy(directory: Path, log: AppendOnlyLog, *, last_run_only: bool) -> Iterator[Path]:
    """Gives a directory beside the log that has a copy of it, and removes it afterwards."""
    copy = Path(tempfile.mkdtemp(prefix="ryz-copy-", dir=directory))
    try:
        log.copy_to(copy, last_run_only=last_run_only)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _user_of(directory: Path) -> int:
    """Returns a process that has a file of the log open, or 0."""
    inside = str((directory / LOG_DIR).resolve())
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.path.dirname(os.readlink(entry)) == inside:
                return int(entry.parts[2])
        except OSError:  # it has ended, or belongs to another user
            continue
    return 0
