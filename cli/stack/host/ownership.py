"""Checks that only this user can change a directory, its files, and the way to it."""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from shared.host.own_paths import is_own, walk

_ACL = "system.posix_acl_access"


def require_own(path: Path) -> None:
    """Raise `PermissionError` if another user owns the directory, or could put another one in its place.

    Owners of directories on the way are trusted unless others may write there, too: an operator may be root
    in a user's directory. So is a group that has no other member than the owner (Debian's and Fedora's users
    have such groups, and a umask that lets them write).
    """
    require_own_path(path)
    if not is_own(path.stat()):
        raise PermissionError(errno.EPERM, "it belongs to another user")


def require_own_path(path: Path) -> None:
    """Check the existing part of the way to a directory that is still to be made."""
    walk(path, _refuse_others)


def require_own_files(directory: Path, names: Iterable[str]) -> None:
    """Raise `PermissionError` if another user made what is there by these names, or may write to it.

    Links are refused, also second names of a file. Directories are checked with all that is in them.
    """
    for name in names:
        here = directory / name
        try:
            found = here.lstat()
        except FileNotFoundError:
            continue
        if not is_own(found):
            raise PermissionError(errno.EPERM, f"{here} belongs to another user")
        if not stat.S_ISDIR(found.st_mode) and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
            raise PermissionError(errno.EPERM, f"{here} is a link, or no file")
        if who := writers(here, found):
            raise PermissionError(errno.EPERM, f"{who} may write to {here} (`chmod go-w {here}`)")
        if stat.S_ISDIR(found.st_mode):
            require_own_files(here, os.listdir(here))


def writers(path: Path, found: os.stat_result) -> str:
    """Return the users who may write to it beside its owner, in words; empty for none."""
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    if found.st_mode & stat.S_IWGRP and not (_is_private(found.st_gid, found.st_uid) and not _has_acl(path)):
        return f"the group {_group_name(found.st_gid)}"
    return ""


def _refuse_others(path: Path, found: os.stat_result) -> None:
    who = writers(path, found)
    if not who:
        return
    if not found.st_mode & stat.S_ISVTX:
        remedy = "o-w" if who == "every user" else "g-w"
        raise PermissionError(errno.EPERM, f"{who} may replace what is in {path} (`chmod {remedy} {path}`)")
    if not is_own(found):  # the sticky bit lets only the owner replace files
        raise PermissionError(errno.EPERM, f"another user owns {path}, and may replace what is in it")


def _is_private(gid: int, uid: int) -> bool:
    """Return whether the group is the user's own: it has its name or number, and no other member."""
    users = {one.pw_uid for one in pwd.getpwall() if one.pw_gid == gid}
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid and users <= {uid}
    return (gid == uid or group.gr_name == name) and users <= {uid} and set(group.gr_mem) <= {name}


def _has_acl(path: Path) -> bool:
    """Return whether an access control list may let more users write than the mode shows."""
    try:
        return _ACL in os.listxattr(path, follow_symlinks=False)
    except (AttributeError, OSError):  # not Linux, or a file system without access control lists
        return False


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
