"""Takes spans in tests: kept as they are made, or through a collector that speaks OTLP over HTTP."""

import gzip
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shared.telemetry.spans.facts import MakeSpans, SpanFacts


class KeptSpans:
    """A `SpanSink` that makes spans at once and keeps them.

    Attributes:
        made: All spans.
    """

    def __init__(self) -> None:
        self.made: list[SpanFacts] = []

    def submit(self, make: MakeSpans) -> None:
        """See `SpanSink.submit`."""
        self.made += make()


class HeardSpan(NamedTuple):
    """A span as a collector gets it; times in nanoseconds since 1970."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """What came.

    Attributes:
        spans: All spans.
        url: Where they are sent.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        self.spans: list[HeardSpan] = []

    def take(self, body: bytes) -> None:
        """Takes the body of an export."""
        exported = ExportTraceServiceRequest.FromString(body)
        for part in exported.resource_spans:
            names = {one.key: one.value.string_value for one in part.resource.attributes}
            for scope in part.scope_spans:
                self.spans += [_heard(names["service.name"], span) for span in scope.spans]


def _heard(service: str, span: Any) -> HeardSpan:
    attributes = {one.key: _value(one.value) for one in span.attributes}
    return HeardSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes,
        span.status.code == 2,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def otlp_collector() -> Iterator[Collector]:
    """Runs a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            coding = self.headers.get("Content-Encoding", "")
            if coding:
                body = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body)
            collector.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()


def covered(begin_ns: int, end_ns: int, parts: Sequence[tuple[int, int]]) -> float:
    """The share of a time that lies in at least one of these parts."""
    total, reached = 0, begin_ns
    for part in sorted(parts):
        since_ns, until_ns = max(part[0], reached), min(part[1], end_ns)
        if until_ns > since_ns:
            total, reached = total + until_ns - since_ns, until_ns
    return total / max(1, end_ns - begin_ns)
