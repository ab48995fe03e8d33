"""Warnings that a stranger can cause without end are logged once, and then as a count in each interval."""

import structlog
from structlog.testing import capture_logs

from shared.telemetry.repeated import INTERVAL_S, MAX_KINDS, RepeatedLog


def test_the_first_is_logged_and_then_a_count_an_interval() -> None:
    now = 0.0
    with capture_logs() as logs:
        repeated = RepeatedLog(structlog.get_logger(), lambda: now)
        for _ in range(1000):
            repeated.warning("not decoded", subject="a", error="x")
        repeated.warning("not decoded", subject="b", error="x")
        now = INTERVAL_S
        repeated.warning("not decoded", subject="a", error="y")
        repeated.warning("not decoded", subject="b", error="y")
    assert [(log["subject"], log["error"], log.get("more")) for log in logs] == [
        ("a", "x", None), ("b", "x", None), ("a", "y", 999), ("b", "y", None)
    ]  # fmt: skip


def test_subjects_that_are_made_up_are_bounded() -> None:
    with capture_logs() as logs:
        repeated = RepeatedLog(structlog.get_logger(), lambda: 0.0)
        for number in range(10 * MAX_KINDS):
            repeated.warning("not decoded", subject=f"s{number}")
    assert len(logs) == MAX_KINDS + 1
