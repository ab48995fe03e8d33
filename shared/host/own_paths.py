"""The way to a file, step by step: no other user's link may decide which of our files a path means."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_MAX_LINKS = 40  # as the kernel's
Check = Callable[[Path, os.stat_result], None]


class ForeignLinkError(PermissionError):
    """A link on the way was made by another user, who chose where it leads."""


def walk(path: Path, check: Check | None = None) -> Path:
    """Where a path leads, as `Path.resolve` says, but no link of another user is followed; root's are.

    Args:
        path: What need not be there, or not all of it.
        check: Is told each directory or file on the way that is there, before what is in it is looked at.

    Raises:
        ForeignLinkError: a link on the way is another user's.
        OSError: it cannot be walked, or what `check` raises.
    """
    waiting = list(reversed((Path.cwd() / path).parts))
    place, links = Path(), 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            place = place.parent
            continue
        here = place / name
        try:
            found = here.lstat()
        except FileNotFoundError:
            place = here
            continue
        if not stat.S_ISLNK(found.st_mode):
            if check is not None:
                check(here, found)
            place = here
            continue
        if not is_own(found):
            raise ForeignLinkError(errno.EPERM, f"{here} is a link that another user made")
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, f"too many links on the way to {path}")
        waiting.extend(reversed(here.readlink().parts))
    return place


def is_own(found: os.stat_result) -> bool:
    """Whether it is this user's or root's."""
    return found.st_uid in {0, os.geteuid()}
