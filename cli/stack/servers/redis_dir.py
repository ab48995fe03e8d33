"""The directory that keeps sessions on disk: Redis runs each command in its files, so they must be ours."""

import errno
import os
from pathlib import Path

from cli.console import called_as, fail, out
from cli.sessions.recovery.old_logs import accept, examine, is_accepted
from cli.sessions.recovery.recover_command import rewrite_note
from cli.stack.host.ownership import require_own, require_own_files, require_own_path, writers
from shared.host.own_paths import walk

_FILES = ("appendonlydir", "appendonly.aof", "dump.rdb")  # what a Redis reads at its start


def make_redis_dir(directory: Path) -> Path:
    """Make the directory and return its path, without links.

    Raises:
        CommandError: It cannot be used, or another user made it or a file that Redis would read there, may
            write there, or has set a link on the way.
    """
    try:
        path = walk(directory)
        require_own_path(path)
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        require_own(path)
        if who := writers(path, path.stat()):  # the sticky bit lets other users make new files
            raise PermissionError(errno.EPERM, f"{who} may write to it (`chmod go-w {path}`)")
        require_own_files(path, _FILES)
        problem = "" if os.access(path, os.W_OK | os.X_OK) else "not writable"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        fail(f"The directory {directory} cannot be used: {problem}. Name another with `--redis-dir`.")
    return path


def require_accepted(path: Path) -> None:
    """Have a person decide about sessions that an earlier release stored there and did not read back.

    Raises:
        CommandError: There are such sessions, or the log cannot be read.
    """
    if is_accepted(path):
        return
    found = examine(path)
    if not found.missing.is_empty:
        fail(
            f"{path} has {found.missing.describe()} that an earlier release stored there and did not read "
            f"back when it was started again. See them with `{called_as()} sessions recover {path}`; "
            "`--restore` brings them back, `--discard` leaves them out. Then start again."
        )
    if note := rewrite_note(found):
        out.print(note, soft_wrap=True)
    accept(path)
