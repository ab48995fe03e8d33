"""Destinations of spans: a collector that speaks OTLP, and the console."""

from typing import Protocol, TextIO

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shared.telemetry.spans.facts import SpanFacts
from shared.telemetry.spans.otlp_encoding import encode_request, encode_span
from shared.telemetry.spans.otlp_sender import OtlpSender

_SCOPE = InstrumentationScope("ryzanstein")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class SpanWriter(Protocol):
    """A destination of spans."""

    def write(self, spans: list[SpanFacts], offset_ns: int) -> str:
        """Writes spans; may wait and raise.

        Args:
            offset_ns: From their clock to the time since 1970.

        Returns:
            Why they were not taken; empty: they were.
        """
        ...

    def close(self) -> None:
        """Nothing more is written."""
        ...


class OtlpWriter:
    """Implements `SpanWriter`: a collector.

    Args:
        resource: The service and its instance.
    """

    def __init__(self, sender: OtlpSender, resource: Resource) -> None:
        self._sender = sender
        self._resource = {name: str(value) for name, value in resource.attributes.items()}

    def write(self, spans: list[SpanFacts], offset_ns: int) -> str:
        """See `SpanWriter.write`."""
        encoded = [encode_span(one, offset_ns) for one in spans]
        return self._sender.send(encode_request(self._resource, _SCOPE.name, encoded))

    def close(self) -> None:
        """See `SpanWriter.close`."""
        self._sender.close()


class ConsoleWriter:
    """Implements `SpanWriter`: each span is a line of JSON, in the form of OpenTelemetry's SDK."""

    def __init__(self, out: TextIO, resource: Resource) -> None:
        self._out = out
        self._resource = resource

    def write(self, spans: list[SpanFacts], offset_ns: int) -> str:
        """See `SpanWriter.write`."""
        for one in spans:  # a write for each line: longer ones mix with the lines of the log
            self._out.write(_readable(one, offset_ns, self._resource).to_json(indent=None) + "\n")
        self._out.flush()
        return ""

    def close(self) -> None:
        """See `SpanWriter.close`."""


def _readable(facts: SpanFacts, offset_ns: int, resource: Resource) -> ReadableSpan:
    trace_id = int(facts.trace_id, 16)
    parent = None
    if facts.parent_id:
        parent = SpanContext(trace_id, int(facts.parent_id, 16), is_remote=False, trace_flags=_SAMPLED)
    return ReadableSpan(
        facts.name,
        SpanContext(trace_id, int(facts.span_id, 16), is_remote=False, trace_flags=_SAMPLED),
        parent,
        resource,
        facts.attributes,
        [Event(name, timestamp=at_ns + offset_ns) for name, at_ns in facts.events],
        kind=_KINDS[facts.kind],
        status=Status(StatusCode.ERROR, facts.error) if facts.error else Status(),
        start_time=facts.begin_ns + offset_ns,
        end_time=facts.end_ns + offset_ns,
        instrumentation_scope=_SCOPE,
    )
