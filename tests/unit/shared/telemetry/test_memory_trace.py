"""SIGUSR1 makes a service log where it holds memory, if it traces it."""

import tracemalloc
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from shared.telemetry.memory_trace import MAX_LINES_OF_CODE, MemoryTrace


@pytest.fixture
def tracing() -> Iterator[MemoryTrace]:
    assert not tracemalloc.is_tracing()
    yield MemoryTrace(3)
    tracemalloc.stop()


def test_the_line_that_holds_most_is_reported_and_then_the_one_that_grew(tracing: MemoryTrace) -> None:
    held = [bytes(1000) for _ in range(1000)]
    with capture_logs() as lines:
        tracing.log_report()
        grown = [bytes(500) for _ in range(500)]
        tracing.log_report()
    first, second = lines
    assert (first["event"], second["event"]) == ("memory held", "memory that has grown")
    assert first["memory_bytes"] > 1_000_000
    assert "tests/unit/shared/telemetry/test_memory_trace.py" in first["places"][0]
    assert int(first["places"][0].split()[0]) > 1000 * len(held)
    assert 500 * len(grown) < int(second["places"][0].split()[0]) < 1000 * len(held)
    assert max(len(first["places"]), len(second["places"])) <= MAX_LINES_OF_CODE


def test_without_the_setting_it_says_what_to_do() -> None:
    with capture_logs() as lines:
        MemoryTrace(0).log_report()
    assert lines[0]["event"] == "memory is not traced"
    assert "RYZ_MEMORY_TRACE" in lines[0]["remedy"]
