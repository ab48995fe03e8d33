"""Files and directories that no other user of this machine may look into, and that a stack may replace.

What a stack puts into its state directory has fixed names, and a marker file says that the directory is a
stack's. In a directory without the marker, files of those names are not ours and are left alone.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from cli.stack.host.ownership import require_own, require_own_path
from shared.host.local_stack import ADMIN_KEY_FILE, STATE_FILE, USERS_FILE
from shared.host.own_paths import is_own

OWN_UMASK = 0o077
MARKER = ".ryz-state"
_SERVERS_FILES = {
    "nats.conf",
    "nats-users.conf",
    *(f"{store}.{kind}" for store in ("redis", "redis-kv") for kind in ("conf", "acl")),
}
_STATE_FILES = {
    "logs",
    "run",
    "stack",
    "jetstream",
    "files",
    STATE_FILE,
    ADMIN_KEY_FILE,
    USERS_FILE,
    f"{USERS_FILE}.lock",
    *_SERVERS_FILES,
}
_DRAFTS = (f"{STATE_FILE}.", f"{USERS_FILE}.", f"{ADMIN_KEY_FILE}.")
_LOG = re.compile(
    r"(supervisor|nats|redis|redis-kv|kvstate|router(-\d+)?|gateway|worker-.+|forks-.+)\.log(\.1)?"
)
_STACK_ID = re.compile(r"[0-9a-f]{6}\n")


def make_state_dir(path: Path) -> None:
    """Make a state directory for this user only; close an existing one that holds only a stack's state.

    A directory with other content keeps its mode: what the stack puts there is private by itself.

    Raises:
        OSError: It cannot be made, another user could replace its files, or it holds files with names that
            a stack uses and that no stack made.
    """
    require_own_path(path)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_own(path)
    _mark(path)
    if all(_is_ours(entry.name) for entry in path.iterdir()):
        with suppress(PermissionError):  # it is root's, but writable
            path.chmod(0o700)


def _is_ours(name: str) -> bool:
    return name == MARKER or name in _STATE_FILES or name.startswith(_DRAFTS)


def _mark(path: Path) -> None:
    """Mark the directory as a stack's, unless it is marked."""
    marker = path / MARKER
    for name in (MARKER, *sorted(_STATE_FILES)):
        with suppress(FileNotFoundError):
            if not is_own((path / name).lstat()):
                raise PermissionError(errno.EPERM, f"{name} in it belongs to another user")
    with suppress(FileNotFoundError):
        if stat.S_ISREG(marker.lstat().st_mode):
            return
    for name in sorted(_STATE_FILES):
        if os.path.lexists(path / name) and not _is_of_a_stack(path / name):
            raise FileExistsError(errno.EEXIST, f"{name} in it was not made by a stack; move it away")
    write_private(marker, "A stack of `ryz up` keeps its state here, and replaces its files.\n")


def _is_of_a_stack(file: Path) -> bool:
    """Return whether a file in a directory without a marker is of a release that wrote none."""
    mode = file.lstat().st_mode
    if file.name == "logs":
        return stat.S_ISDIR(mode) and all(_LOG.fullmatch(log) for log in os.listdir(file))
    if file.name == "stack":
        return stat.S_ISREG(mode) and _STACK_ID.fullmatch(file.read_text()) is not None
    return stat.S_ISREG(mode) and file.name.startswith(USERS_FILE)  # read and checked before it is replaced


def make_private_dir(path: Path) -> None:
    """Make the directory, or takes away from others what they may do in it; `OSError` if it is another's."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.lstat().st_uid != os.geteuid():  # also for a link of another user
        raise PermissionError(errno.EPERM, f"{path.name} in it belongs to another user")
    path.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read."""
    path.unlink(missing_ok=True)  # the mode is set only for a new file
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def replace_private(path: Path, text: str) -> None:
    """Replace a file that only this user may read in one step, so that a reader never sees half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    write_private(draft, text)
    draft.replace(path)


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a file of this user only; a link is not followed."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def remove_empty(path: Path) -> None:
    """Remove a directory and those below it, as far as there are no files in them."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):  # not empty
            Path(folder).rmdir()


def remove_dir(path: Path, files: list[Path]) -> None:
    """Remove those files and their directory; the directory stays if it holds anything else."""
    for file in files:
        file.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or not there
        path.rmdir()
