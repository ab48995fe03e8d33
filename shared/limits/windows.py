"""Windows of time over which limits count: minutes of the clock, days and months of a time zone. Pure.

A day begins at midnight of the tenant's time zone, so it has 23 or 25 hours when summer time begins or ends.
"""

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shared.errors import InvalidRequest

Timed = Literal["minute", "day", "month"]
MINUTE_MS = 60_000


class Window(NamedTuple):
    """A window, in milliseconds since 1970; its end is no part of it."""

    began_ms: int
    ends_ms: int


@lru_cache(maxsize=512)
def zone_of(name: str) -> tzinfo:
    """Returns a time zone of the IANA data base.

    Raises:
        InvalidRequest: There is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"{name[:64]!r} is no time zone of the IANA data base, such as Europe/Oslo", param="time_zone"
        ) from None


def window_at(kind: Timed, now_ms: int, time_zone: str) -> Window:
    """Returns the window that runs at a time; raises `InvalidRequest` for an unknown time zone."""
    if kind == "minute":
        began_ms = now_ms - now_ms % MINUTE_MS
        return Window(began_ms, began_ms + MINUTE_MS)
    zone = zone_of(time_zone)
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    first = today if kind == "day" else today.replace(day=1)
    return Window(_midnight_ms(first, zone), _midnight_ms(_next(kind, first), zone))


def windows_around(kind: Timed, now_ms: int, time_zone: str) -> tuple[int, int, int, int]:
    """Returns when the window before, the one that runs and the next one begin, and when that ends.

    A store whose clock differs from the caller's chooses among them.
    """
    runs = window_at(kind, now_ms, time_zone)
    before = window_at(kind, runs.began_ms - 1, time_zone)
    after = window_at(kind, runs.ends_ms, time_zone)
    return before.began_ms, runs.began_ms, runs.ends_ms, after.ends_ms


def _next(kind: Timed, first: date) -> date:
    if kind == "day":
        return first + timedelta(days=1)
    return (first + timedelta(days=31)).replace(day=1)


def _midnight_ms(day: date, zone: tzinfo) -> int:
    """When a day begins. Where the clock leaps over midnight, the day begins with the leap."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    return round(midnight.timestamp() * 1000)
