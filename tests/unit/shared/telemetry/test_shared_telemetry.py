"""Logs carry names and ids; trace context passes through headers; spans are recorded when asked for."""

import json
import logging
import warnings

import pytest
import structlog
from prometheus_client import CollectorRegistry

from shared.address import redact
from shared.bus.delivery import BusStats
from shared.lifecycle import Service
from shared.settings import CommonSettings
from shared.telemetry.logs.setup import configure_logging
from shared.telemetry.metrics import BusCollector, ClientCollector
from shared.telemetry.request_ids import bind_request
from shared.telemetry.trace_context import carry, inject, trace_id

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_json_lines_name_service_instance_request_and_trace(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(CommonSettings(instance_id="i1"), "demo")
    with bind_request("r-1", PARENT):
        structlog.get_logger("a").info("hello", n=1)
        logging.getLogger("library").warning("from %s", "outside")
    structlog.get_logger("a").debug("too fine")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["n"], ours["level"]) == ("hello", 1, "info")
    assert theirs["event"] == "from outside"
    for line in (ours, theirs):
        assert (line["service"], line["instance"]) == ("demo", "i1")
        assert (line["request_id"], line["trace_id"]) == ("r-1", PARENT[3:35])


def test_warnings_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging(CommonSettings(instance_id="i1"), "demo")
        warnings.warn("old habits", UserWarning, stacklevel=1)
    (line,) = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (line["level"], line["instance"]) == ("warning", "i1")
    assert "old habits" in line["event"]


def test_an_exception_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(CommonSettings(), "demo")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"][0]["exc_value"] == "broken"


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_trace_does_not_show_what_variables_held(capsys: pytest.CaptureFixture[str], form: str) -> None:
    configure_logging(CommonSettings.model_validate({"log_format": form}), "demo")
    prompt = "".join(["sec", "ret words"])
    try:
        raise ValueError(f"broken after {len(prompt)} characters")
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("library").exception("failed too")
    text = capsys.readouterr().err
    assert text.count("broken after 12 characters") >= 2
    assert "secret words" not in text


def test_passwords_are_not_shown() -> None:
    urls = "redis://:pa/ss@w@host:1,nats://user:word@host"
    assert redact(urls) == "redis://***@host:1,nats://***@host"
    assert redact("nats://host:4222") == "nats://host:4222"


def test_console_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(CommonSettings(log_format="console", log_level="debug"), "demo")
    structlog.get_logger().debug("hello", n=1)
    assert "hello" in capsys.readouterr().err


def test_without_a_trace_no_header_is_made() -> None:
    assert inject({"a": "b"}) == {"a": "b"}
    assert carry({"a": "b"}) == {}
    assert trace_id({}) == ""
    assert trace_id({"traceparent": "nonsense"}) == ""


def test_context_passes_through_headers_without_any_provider() -> None:
    headers = {"traceparent": PARENT, "tracestate": "x=1", "other": "y"}
    assert carry(headers) == {"traceparent": PARENT, "tracestate": "x=1"}
    assert inject(headers) == headers
    assert trace_id(headers) == "0af7651916cd43dd8448eb211c80319c"


async def test_bus_counters_are_exported() -> None:
    service = Service(CommonSettings(), "demo")
    stats = BusStats(dropped=3)
    BusCollector(stats, "main", lambda: 7).register(service.registry)
    value, main = service.registry.get_sample_value, {"connection": "main"}
    assert value("ryz_bus_connected", main) == 0
    assert value("ryz_bus_pending_messages", main) == 7
    stats.connected = True
    assert value("ryz_bus_connected", main) == 1
    assert value("ryz_bus_connected_total", main) is None
    assert service.registry.get_sample_value("ryz_bus_dropped_total", {"connection": "main"}) == 3


def test_what_a_client_counted_can_be_scraped() -> None:
    registry = CollectorRegistry()
    stats = ClientCollector(registry).stats
    stats.lost, stats.resumed = 3, 2
    stats.observe_pause(0.03)
    assert registry.get_sample_value("ryz_client_lost_total") == 3
    assert registry.get_sample_value("ryz_client_resumed_total") == 2
    assert registry.get_sample_value("ryz_client_stream_pause_seconds_bucket", {"le": "0.025"}) == 0
    assert registry.get_sample_value("ryz_client_stream_pause_seconds_bucket", {"le": "0.05"}) == 1
