"""Exports spans in a thread of its own, so that serving never waits for a collector.

The thread makes the spans, gathers them and has them written: to a collector by OTLP, or to the console. If
it falls behind, what comes is dropped and counted.
"""

import queue
import sys
import threading
import time
from collections.abc import Iterator

import structlog
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Counter

from shared.settings import CommonSettings
from shared.telemetry.spans.facts import MakeSpans, SpanFacts
from shared.telemetry.spans.otlp_sender import OtlpSender
from shared.telemetry.spans.writers import ConsoleWriter, OtlpWriter, SpanWriter

log = structlog.get_logger(__name__)
MAX_WAITING = 1024  # requests whose spans are not made yet
BATCH_SPANS = 2048
BATCH_S = 2.0  # the longest that a span waits for others, since each export is a request of a millisecond
SWITCH_S = 0.0005  # the longest that this thread keeps the event loop from running
CLOSE_S = 3.0  # for what is left at the end of the service


class SpanExport:
    """Implements `SpanSink`.

    Args:
        registry: Gets `ryz_trace_spans_total`.
        batch_s: The longest that a span waits for others.
    """

    def __init__(
        self,
        writer: SpanWriter,
        registry: CollectorRegistry,
        batch_s: float = BATCH_S,
    ) -> None:
        self._writer = writer
        self._batch_s = batch_s
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
        self._writer.close()

    def _run(self) -> None:
        for batch in self._batches():
            try:
                why = self._writer.write(batch, time.time_ns() - time.monotonic_ns())
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            self._counts["failed" if why else "exported"].inc(len(batch))
            if why:
                log.warning("spans were not exported", count=len(batch), why=why)

    def _batches(self) -> Iterator[list[SpanFacts]]:
        open_jobs = True
        while open_jobs:
            batch: list[SpanFacts] = []
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

    def _made(self, make: MakeSpans) -> list[SpanFacts]:
        try:
            return list(make())
        except Exception:  # a bug in them must not end the thread
            log.exception("spans could not be made")
            return []


def span_export(settings: CommonSettings, service: str, registry: CollectorRegistry) -> SpanExport | None:
    """Returns the export of spans, which must be closed at the end, or None if nothing is recorded.

    Raises:
        Unavailable: The HTTP client for OTLP is not installed, or its settings cannot be read.
    """
    if settings.trace_ratio == 0 or settings.trace_export == "none":
        return None
    resource = Resource.create({"service.name": service, "service.instance.id": settings.instance_id})
    if settings.trace_export == "console":
        return SpanExport(ConsoleWriter(sys.stderr, resource), registry, batch_s=0.0)
    return SpanExport(OtlpWriter(OtlpSender(settings.otlp_endpoint), resource), registry)
