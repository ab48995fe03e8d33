"""Resolves paths without following links of other users, which could lead to any of our files."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_MAX_LINKS = 40  # as the kernel's
Check = Callable[[Path, os.stat_result], None]


class ForeignLinkError(PermissionError):
    """A link on the way was made by another user."""


def walk(path: Path, check: Check | None = None) -> Path:
    """Resolves a path like `Path.resolve`, but follows only links of this user and of root.

    Args:
        path: The path, which need not exist as a whole.
        check: Called with each existing directory or file on the way, before its content is looked at.

    Raises:
        ForeignLinkError: A link on the way is another user's.
        OSError: The path cannot be walked; or what `check` raises.
    """
    waiting = list(reversed((Path.cwd() / path).parts))
    folder, links = Path(), 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            folder = folder.parent
            continue
        here = folder / name
        try:
            found = here.lstat()
        except FileNotFoundError:
            folder = here
            continue
        if not stat.S_ISLNK(found.st_mode):
            if check is not None:
                check(here, found)
            folder = here
            continue
        if not is_own(found):
            raise ForeignLinkError(errno.EPERM, f"{here} is a link that another user made")
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, f"too many links on the way to {path}")
        waiting.extend(reversed(here.readlink().parts))
    return folder


def is_own(found: os.stat_result) -> bool:
    """Returns whether it belongs to this user or to root."""
    return found.st_uid in {0, os.geteuid()}
