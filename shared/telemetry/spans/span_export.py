"""Exports spans through OpenTelemetry in a thread of its own, so that serving never waits for a collector.

The thread makes the spans, gathers them and gives them to the exporter. If it falls behind, what comes is
dropped and counted.
"""

import importlib
import queue
import sys
import threading
import time
from collections.abc import Iterator

import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client import CollectorRegistry, Counter

from shared.errors import Unavailable
from shared.settings import CommonSettings
from shared.telemetry.spans.span_facts import MakeSpans, SpanFacts

log = structlog.get_logger(__name__)
MAX_WAITING = 1024  # requests whose spans are not made yet
BATCH_SPANS = 512
BATCH_S = 2.0  # the longest that a span waits for others, since each export is a request of some milliseconds
SWITCH_S = 0.0005  # the longest that this thread keeps the event loop from running
CLOSE_S = 3.0  # for what is left at the end of the service
_SCOPE = InstrumentationScope("ryzanstein")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class SpanExport:
    """Implements `SpanSink`.

    Args:
        exporter: Where spans go.
        resource: The service and its instance.
        registry: Gets `ryz_trace_spans_total`.
        batch_s: The longest that a span waits for others.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Resource,
        registry: CollectorRegistry,
        batch_s: float = BATCH_S,
    ) -> None:
        self._exporter = exporter
        self._batch_s = batch_s
        self._resource = resource
        self._jobs: queue.Queue[MakeSpans | None] = queue.Queue(MAX_WAITING)
        counter = Counter(
            "ryz_trace_spans",
            "Spans by what became of them: `exported`, or `failed` because the collector did not take them; "
            "`dropped` counts requests whose spans were not made because too many waited.",
            ["outcome"],
            registry=registry,
        )
        self._counts = {name: counter.labels(name) for name in ("exported", "failed", "dropped")}
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._thread = threading.Thread(target=self._run, name="ryz-spans", daemon=True)
        self._thread.start()

    def submit(self, make: MakeSpans) -> None:
        """See `SpanSink.submit`."""
        try:
            self._jobs.put_nowait(make)
        except queue.Full:
            self._counts["dropped"].inc()

    def close(self) -> None:
        """Exports what is left, for `CLOSE_S` at most."""
        try:
            self._jobs.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        except queue.Full:
            pass
        self._exporter.shutdown()

    def _run(self) -> None:
        for batch in self._batches():
            try:
                done = self._exporter.export(batch) is SpanExportResult.SUCCESS
                why = "the exporter's own log line says why"
            except Exception as error:
                done, why = False, f"{type(error).__name__}: {error}"
            self._counts["exported" if done else "failed"].inc(len(batch))
            if not done:
                log.warning("spans were not exported", count=len(batch), why=why)

    def _batches(self) -> Iterator[list[ReadableSpan]]:
        open_jobs = True
        while open_jobs:
            batch: list[ReadableSpan] = []
            due_s, job = None, self._jobs.get()
            while job is not None:
                batch += self._made(job)
                due_s = due_s or time.monotonic() + self._batch_s
                left_s = due_s - time.monotonic()
                if len(batch) >= BATCH_SPANS or left_s <= 0:
                    break
                try:
                    job = self._jobs.get(timeout=left_s)
                except queue.Empty:
                    break
            else:
                open_jobs = False
            if batch:
                yield batch

    def _made(self, make: MakeSpans) -> list[ReadableSpan]:
        offset_ns = time.time_ns() - time.monotonic_ns()
        try:
            return [self._readable(facts, offset_ns) for facts in make()]
        except Exception:  # a bug in them must not end the thread
            log.exception("spans could not be made")
            return []

    def _readable(self, facts: SpanFacts, offset_ns: int) -> ReadableSpan:
        trace_id = int(facts.trace_id, 16)
        parent = None
        if facts.parent_id:
            parent = SpanContext(trace_id, int(facts.parent_id, 16), is_remote=False, trace_flags=_SAMPLED)
        return ReadableSpan(
            facts.name,
            SpanContext(trace_id, int(facts.span_id, 16), is_remote=False, trace_flags=_SAMPLED),
            parent,
            self._resource,
            facts.attributes,
            [Event(name, timestamp=at_ns + offset_ns) for name, at_ns in facts.events],
            kind=_KINDS[facts.kind],
            status=Status(StatusCode.ERROR, facts.error) if facts.error else Status(),
            start_time=facts.begin_ns + offset_ns,
            end_time=facts.end_ns + offset_ns,
            instrumentation_scope=_SCOPE,
        )


def span_export(settings: CommonSettings, service: str, registry: CollectorRegistry) -> SpanExport | None:
    """Returns the export of spans, which must be closed at the end, or None if nothing is recorded.

    Raises:
        Unavailable: The OTLP exporter is not installed.
    """
    if settings.trace_ratio == 0 or settings.trace_export == "none":
        return None
    resource = Resource.create({"service.name": service, "service.instance.id": settings.instance_id})
    if settings.trace_export == "console":
        exporter: SpanExporter = ConsoleSpanExporter(
            out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n"
        )
        return SpanExport(exporter, resource, registry, batch_s=0.0)
    return SpanExport(_otlp_exporter(settings.otlp_endpoint), resource, registry)


def _otlp_exporter(endpoint: str) -> SpanExporter:
    try:
        module = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise Unavailable(
            "RYZ_TRACE_EXPORT=otlp needs the package opentelemetry-exporter-otlp-proto-http: install the "
            "extra `tracing` (pip install 'ryzanstein[tracing]'), or set RYZ_TRACE_EXPORT=console",
            reason="exporter_missing",
        ) from error
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=endpoint or None)
    return exporter
