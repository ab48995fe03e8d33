"""The limits of each user outside: its own, if `ryz bus-users` has some, else those of the settings.

The file is checked once a second while such users send requests. If it cannot be read, the limits before
stand.
"""

import math
from pathlib import Path
from typing import NamedTuple

import structlog

from shared.bus.users import read_users
from shared.errors import InvalidRequest

LOOK_S = 1.0
log = structlog.get_logger(__name__)


class UserLimits(NamedTuple):
    """The limits of one user; `max_rps`: requests a second, 0: no limit."""

    max_rps: float
    max_priority: int


class UserLimitsFile:
    """Reads the users' own limits from a file; an empty name: all users have the default."""

    def __init__(self, file: str, default: UserLimits) -> None:
        self._path = Path(file) if file else None
        self._default = default
        self._own: dict[str, UserLimits] = {}
        self._looked_at = -math.inf
        self._stamp: tuple[int, int, int] | None = None

    def of(self, user: str, now: float) -> UserLimits:
        """The limits of that user."""
        if self._path is not None and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._look(self._path)
        return self._own.get(user, self._default)

    def _look(self, path: Path) -> None:
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            log.warning("bus users not read", path=str(path), error=error.strerror)
            return
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            users = read_users(path).users
        except InvalidRequest as error:
            log.warning("bus users not read, the limits before stand", error=error.message)
            return
        default = self._default
        self._own = {
            user.name: UserLimits(
                default.max_rps if user.max_rps is None else user.max_rps,
                default.max_priority if user.max_priority is None else user.max_priority,
            )
            for user in users
        }
