"""Files and directories that no other user of this machine may look into."""

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

OWN_UMASK = 0o077
_STATE_FILES = ("logs", "run", "up.json", "nats.conf", "redis.", "redis-kv.", "bus-users.")


def make_state_dir(path: Path) -> None:
    """Makes it for this user only; one that holds nothing but a stack's state is closed to others, too.

    A directory with other content keeps its mode: what the stack puts there is private by itself.

    Raises:
        OSError: it cannot be made, or another user could put something else in the place of what is in it.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_others(path)
    if all(entry.name.startswith(_STATE_FILES) for entry in path.iterdir()):
        with suppress(PermissionError):  # root's, and writable
            path.chmod(0o700)


def _refuse_others(path: Path) -> None:
    """Raises `PermissionError` if another user could put something in the place of the directory.

    That is so if every user may write to a directory on the way to it, unless that has the sticky bit.
    Owners of directories on the way are trusted: an operator may be root in a user's directory.
    """
    if path.stat().st_uid not in {0, os.geteuid()}:
        raise PermissionError(errno.EPERM, "it belongs to another user")
    for place in (path, *path.resolve().parents):
        if place.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise PermissionError(errno.EPERM, f"every user may replace what is in {place}")


def make_private_dir(path: Path) -> None:
    """Makes the directory, or takes away from others what they may do in it; `OSError` if it is another's."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.lstat().st_uid != os.geteuid():  # a link of another user, too
        raise PermissionError(errno.EPERM, f"{path.name} in it belongs to another user")
    path.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only this user may read."""
    path.unlink(missing_ok=True)  # the mode counts for a new file only
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def remove(path: Path) -> None:
    """Removes a file or a whole directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
