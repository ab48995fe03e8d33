"""Windows of limits: minutes, days and months, over changes of day and of summer time."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.limits.windows import Timed, window_at, windows_around

HOUR_MS = 3_600_000
ZONES = ["UTC", "Europe/Oslo", "America/New_York", "Asia/Kathmandu", "America/Sao_Paulo", "Africa/Cairo"]


def at(text: str, zone: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Oslo", "2026-03-28", 24),
        ("Europe/Oslo", "2026-03-29", 23),
        ("Europe/Oslo", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("UTC", "2026-03-29", 24),
    ],
)
def test_a_day_has_the_hours_of_its_zone(zone: str, day: str, hours: int) -> None:
    window = window_at("day", at(f"{day}T12:00", zone), zone)
    assert window.began_ms == at(f"{day}T00:00", zone)
    assert window.ends_ms - window.began_ms == hours * HOUR_MS


@pytest.mark.parametrize("zone", ["Europe/Oslo", "America/New_York"])
def test_a_day_ends_at_midnight_and_not_before(zone: str) -> None:
    midnight = at("2026-03-09T00:00", zone)
    assert window_at("day", midnight - 1, zone).ends_ms == midnight
    assert window_at("day", midnight, zone).began_ms == midnight


def test_a_month_has_its_own_length_and_begins_at_midnight_of_the_zone() -> None:
    window = window_at("month", at("2026-03-31T23:59", "Europe/Oslo"), "Europe/Oslo")
    assert window == (at("2026-03-01T00:00", "Europe/Oslo"), at("2026-04-01T00:00", "Europe/Oslo"))
    assert window.ends_ms - window.began_ms == (31 * 24 - 1) * HOUR_MS, "summer time began in it"
    december = window_at("month", at("2026-12-31T23:59", "America/New_York"), "America/New_York")
    assert december.ends_ms == at("2027-01-01T00:00", "America/New_York")


def test_a_day_begins_where_the_clock_leaps_over_midnight() -> None:
    zone = "America/Sao_Paulo"  # until 2018 summer time began at midnight: 00:00 became 01:00
    leap = at("2018-11-04T01:00", zone)
    window = window_at("day", leap + HOUR_MS, zone)
    assert window.began_ms == leap
    assert window.ends_ms - window.began_ms == 23 * HOUR_MS
    assert window_at("day", leap - 1, zone).ends_ms == leap


@given(st.integers(0, 4_000_000_000_000), st.sampled_from(ZONES), st.sampled_from(["minute", "day", "month"]))
def test_windows_follow_each_other_without_gaps(now_ms: int, zone: str, kind: Timed) -> None:
    window = window_at(kind, now_ms, zone)
    assert window.began_ms <= now_ms < window.ends_ms
    assert window_at(kind, window.began_ms, zone) == window == window_at(kind, window.ends_ms - 1, zone)
    before, runs, after, end = windows_around(kind, now_ms, zone)
    assert before < runs < after < end
    assert window_at(kind, before, zone).ends_ms == runs
    assert window_at(kind, after, zone).ends_ms == end


def test_an_unknown_zone_is_refused() -> None:
    for name in ("Europe/Atlantis", "../etc/passwd", ""):
        with pytest.raises(InvalidRequest, match="time zone"):
            window_at("day", 0, name)
