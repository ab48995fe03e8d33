"""Ids of traces, and the export of spans: to a collector, to the console, and too many of them."""

import json
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from prometheus_client import CollectorRegistry

from shared.errors import Unavailable
from shared.settings import CommonSettings
from shared.telemetry.spans.export import MAX_WAITING, SpanExport, span_export
from shared.telemetry.spans.facts import SpanFacts
from shared.telemetry.spans.trace_ids import TraceParent, is_in_share, new_span_id, trace_id_of_request
from tests.kits.servers import free_port
from tests.kits.spans import otlp_collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def made(name: str = "work", parent: str = "", **attributes: str | int | list[str]) -> SpanFacts:
    now_ns = time.monotonic_ns()
    return SpanFacts(name, TRACE, parent, now_ns - 5_000_000, now_ns, dict(attributes))


def exporting(**settings: object) -> tuple[SpanExport, CollectorRegistry]:
    registry = CollectorRegistry()
    chosen = CommonSettings.model_validate({"trace_ratio": 1.0, **settings})
    export = span_export(chosen, "demo", registry)
    assert export is not None
    return export, registry


def count(registry: CollectorRegistry, outcome: str) -> float | None:
    return registry.get_sample_value("ryz_trace_spans_total", {"outcome": outcome})


@pytest.mark.parametrize("flags", ["00", "01", "ff"])
def test_a_header_is_read_and_written(flags: str) -> None:
    read = TraceParent.read(f"00-{TRACE}-{SPAN}-{flags}")
    assert read == TraceParent(TRACE, SPAN, sampled=flags != "00")
    assert TraceParent.read(read.header) == read
    assert TraceParent.read(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == TraceParent(TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    ["", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
     f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-1",
     f"00-{TRACE[1:]}-{SPAN}-01", "00-" + "\u0660" * 32 + f"-{SPAN}-01"],
)  # fmt: skip
def test_what_is_not_valid_is_no_header(header: str) -> None:
    assert TraceParent.read(header) is None


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert TraceParent.read(text) is None


def test_the_trace_of_a_request_follows_from_its_id_and_shares_are_those_of_opentelemetry() -> None:
    ids = [trace_id_of_request(f"r-{number}") for number in range(4000)]
    assert len(set(ids)) == 4000
    assert ids[7] == trace_id_of_request("r-7")
    theirs = TraceIdRatioBased(0.1)
    for one in ids:
        decision = theirs.should_sample(None, int(one, 16), "x").decision
        assert is_in_share(one, 0.1) == (decision is Decision.RECORD_AND_SAMPLE)
    assert 300 < sum(is_in_share(one, 0.1) for one in ids) < 500
    assert all(is_in_share(one, 1.0) for one in ids)
    assert len({new_span_id() for _ in range(100)}) == 100


def test_spans_reach_a_collector_with_their_service_and_times() -> None:
    with otlp_collector() as collector:
        export, registry = exporting(trace_export="otlp", otlp_endpoint=collector.url)
        export.submit(lambda: [made("one", kinds=["a", "b"], rank=3), made("two", SPAN)])
        export.close()
        one, two = collector.spans
    assert (one.service, one.name, one.trace_id, one.parent_id) == ("demo", "one", TRACE, "")
    assert one.attributes == {"kinds": ["a", "b"], "rank": 3}
    assert two.parent_id == SPAN
    assert one.end_ns - one.begin_ns == 5_000_000
    assert abs(one.end_ns - time.time_ns()) < 60e9
    assert count(registry, "exported") == 2


def test_without_a_collector_spans_are_counted_as_failed_and_the_end_does_not_wait_for_long() -> None:
    export, registry = exporting(
        trace_export="otlp", otlp_endpoint=f"http://127.0.0.1:{free_port()}/v1/traces"
    )
    export.submit(lambda: [made()])
    began = time.monotonic()
    export.close()
    assert time.monotonic() - began < 30
    assert not count(registry, "exported")
    while not count(registry, "failed"):
        assert time.monotonic() - began < 60
        time.sleep(0.05)


def test_what_is_too_much_is_dropped_and_counted_and_a_bug_does_not_end_the_export(
    capsys: pytest.CaptureFixture[str],
) -> None:
    export, registry = exporting(trace_export="console")
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[SpanFacts]:
        begun.set()
        assert go_on.wait(20)
        yield made("", number=int("a bug"))

    export.submit(slow)
    assert begun.wait(20)
    for _ in range(MAX_WAITING + 3):
        export.submit(lambda: [made("later")])
    assert count(registry, "dropped") == 3
    go_on.set()
    export.close()
    assert count(registry, "exported") == MAX_WAITING
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert sum(line.get("name") == "later" for line in lines) == MAX_WAITING
    assert lines[-1]["resource"]["attributes"]["service.name"] == "demo"


def test_a_missing_exporter_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(Unavailable, match=r"pip install 'ryzanstein\[tracing\]'"):
        exporting(trace_export="otlp")


def test_nothing_is_recorded_by_default() -> None:
    for chosen in ({}, {"trace_ratio": 1.0}, {"trace_export": "console"}):
        settings = CommonSettings.model_validate(chosen)
        assert span_export(settings, "demo", CollectorRegistry()) is None
