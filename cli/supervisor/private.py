"""Files and directories that no other user of this machine may look into."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

OWN_UMASK = 0o077
_STATE_FILES = ("logs", "run", "up.json", "nats.conf", "redis.", "redis-kv.", "bus-users.")


def make_state_dir(path: Path) -> None:
    """Makes it for this user only; one that holds nothing but a stack's state is closed to others, too.

    A directory with other content keeps its mode: what the stack puts there is private by itself.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if all(entry.name.startswith(_STATE_FILES) for entry in path.iterdir()):
        with suppress(PermissionError):  # another user's, and writable
            path.chmod(0o700)


def make_private_dir(path: Path) -> None:
    """Makes the directory, or takes away from others what they may do in it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
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
