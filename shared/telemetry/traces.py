"""Spans of the services. Spans cost time, so their share is a setting, which is 0 by default."""

import importlib
import sys

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
    SpanExporter,
)
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from shared.errors import Unavailable
from shared.settings import CommonSettings


def tracer_provider(settings: CommonSettings, service: str) -> TracerProvider | None:
    """Returns the recorder of spans, which must be shut down at the end, or None if nothing is recorded.

    Raises:
        Unavailable: The OTLP exporter is not installed.
    """
    if settings.trace_ratio == 0 or settings.trace_export == "none":
        return None
    resource = Resource.create({"service.name": service, "service.instance.id": settings.instance_id})
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio)),
        resource=resource,
        shutdown_on_exit=False,
    )
    if settings.trace_export == "console":
        exporter = ConsoleSpanExporter(
            out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n"
        )
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    else:
        provider.add_span_processor(BatchSpanProcessor(_otlp_exporter(settings.otlp_endpoint)))
    return provider


def tracer(provider: TracerProvider | None, name: str) -> trace.Tracer:
    """Returns a tracer; without a provider its spans only pass the context on."""
    return provider.get_tracer(name) if provider else trace.NoOpTracer()


def _otlp_exporter(endpoint: str) -> SpanExporter:
    try:
        module = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise Unavailable(
            "RYZ_TRACE_EXPORT=otlp needs the package opentelemetry-exporter-otlp-proto-http: install it, or "
            "set RYZ_TRACE_EXPORT=console",
            reason="exporter_missing",
        ) from error
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=endpoint or None)
    return exporter
