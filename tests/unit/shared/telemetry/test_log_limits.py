"""A flood of log lines is cut to a few of each kind, counted, and told of; lines have a bound."""

import asyncio
import json
import logging

import pytest
import structlog
from prometheus_client import CollectorRegistry

from shared.settings import CommonSettings
from shared.telemetry.logs.limits import INTERVAL_S, LEFT_OUT, MAX_KINDS, LogLimiter
from shared.telemetry.logs.lines import MAX_LINE_BYTES, render_line
from shared.telemetry.logs.metrics import LogCollector
from shared.telemetry.logs.schema import BURST, problems_of
from shared.telemetry.logs.setup import configure_logging
from tests.kits.waiting import until


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_flood_leaves_a_few_lines_of_each_kind_and_no_error_vanishes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limiter = configure_logging(CommonSettings(instance_id="i1"), "router")
    log = structlog.get_logger()
    for number in range(5000):
        log.warning("bad message", subject=f"s.{number}", error="x" * 500)
        logging.getLogger("library").error("trouble with %d", number)
    log.error("request failed")
    try:
        raise KeyError("other")
    except KeyError:
        log.exception("request failed")
    written = lines(capsys)
    counts = {event: len([one for one in written if one["event"] == event]) for event in ("bad message",)}
    assert counts["bad message"] == BURST
    assert [one["event"] for one in written[-2:]] == ["request failed", "request failed"]
    assert len(written) == 2 * BURST + 2
    assert sum(len(json.dumps(one)) for one in written) < 64 * 1024
    assert not any(problems_of(one) for one in written)
    assert limiter.left_out == {
        "debug": 0,
        "info": 0,
        "warning": 5000 - BURST,
        "error": 5000 - BURST,
        "critical": 0,
    }
    assert limiter.written["warning"] == BURST
    assert limiter.written["error"] == BURST + 2


def test_what_was_left_out_is_reported_when_the_interval_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(CommonSettings(), "router")
    clock = Clock()
    limiter = LogLimiter(2, clock)
    taken = [limiter.takes("error", "a failure", "KeyError") for _ in range(7)]
    assert taken == [True, True, False, False, False, False, False]
    clock.now += INTERVAL_S
    assert limiter.takes("info", "something else")
    (reported,) = lines(capsys)
    assert {"event": LEFT_OUT, "level": "error", "of": "a failure", "of_level": "error", "count": 5,
            "exception_type": "KeyError"}.items() <= reported.items()  # fmt: skip
    assert limiter.takes("error", "a failure", "KeyError"), "a new interval"
    clock.now += INTERVAL_S
    limiter.report_left_out(clock.now)
    assert lines(capsys) == []


async def test_the_end_of_a_flood_is_reported_without_another_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging(CommonSettings(), "router")
    monkeypatch.setattr("shared.telemetry.logs.limits.INTERVAL_S", 0.02)
    limiter = LogLimiter(1)
    assert [limiter.takes("warning", "w") for _ in range(3)] == [True, False, False]
    reported: list[dict[str, object]] = []

    def is_told() -> bool:
        reported.extend(lines(capsys))
        return bool(reported)

    reporting = asyncio.create_task(limiter.report_regularly())
    await until(is_told)
    reporting.cancel()
    assert reported[0]["count"] == 2


def test_kinds_without_number_have_one_limit_together() -> None:
    limiter = LogLimiter(2, Clock())
    taken = sum(limiter.takes("warning", f"event {number}") for number in range(10 * MAX_KINDS))
    assert taken == MAX_KINDS + 2
    assert limiter.takes("error", "an error meanwhile")


def test_lines_that_were_asked_for_are_all_written() -> None:
    limiter = LogLimiter(1, Clock())
    assert all(limiter.takes("info", "request") for _ in range(100))
    assert all(LogLimiter(0, Clock()).takes("info", "other") for _ in range(100))


def test_counts_are_exported() -> None:
    registry, limiter = CollectorRegistry(), LogLimiter(1, Clock())
    LogCollector(limiter).register(registry)
    assert registry.get_sample_value("ryz_log_suppressed_total", {"level": "error"}) == 0
    for _ in range(5):
        limiter.takes("error", "a failure")
    assert registry.get_sample_value("ryz_log_lines_total", {"level": "error"}) == 1
    assert registry.get_sample_value("ryz_log_suppressed_total", {"level": "error"}) == 4


@pytest.mark.parametrize(
    "field",
    [
        {"error": "\N{SNOWMAN}" * 100_000},
        {"left_out": ["name" * 500] * 500},
        {
            "exception": [
                {"exc_type": "E", "exc_value": "v" * 9000, "frames": [{"filename": "f" * 900}] * 60}
            ]
            * 9
        },
        {f"field {number}": "v" * 1900 for number in range(50)},
    ],
    ids=["text", "list", "stack", "fields"],
)
def test_a_line_fits_into_what_docker_keeps_whole(field: dict[str, object]) -> None:
    event = {
        "timestamp": "t",
        "level": "error",
        "event": "e",
        "service": "router",
        "request_id": "r-1",
        **field,
    }
    text = render_line(None, "", event)
    assert len(text.encode()) <= MAX_LINE_BYTES
    assert json.loads(text)["request_id"] == "r-1"
