"""Trace context in message headers (`traceparent`, `tracestate`). It is always passed on, recorded or not.

It needs OpenTelemetry's API only, so that clients in other services need no more.
"""

from collections.abc import Mapping

from opentelemetry.context import Context, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.telemetry.request_ids import TRACE_PARENT, trace_id_of

TRACE_HEADERS = (TRACE_PARENT, "tracestate")
_PROPAGATOR = TraceContextTextMapPropagator()


def inject(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns a copy of the headers with the current trace context, unless they have one already."""
    result = dict(headers) if headers else {}
    if "traceparent" not in result and get_current():
        _PROPAGATOR.inject(result)
    return result


def carry(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns only the trace context of a message, for the messages that it leads to."""
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def extract(headers: Mapping[str, str]) -> Context:
    """Returns the trace context of a message, which is empty if it has none."""
    return _PROPAGATOR.extract(headers) if "traceparent" in headers else Context()


def trace_id(headers: Mapping[str, str]) -> str:
    """Returns the trace id in the headers for log lines; empty if there is none."""
    return trace_id_of(headers.get(TRACE_PARENT, ""))
