"""Spans as bytes of OTLP: our encoder beside the SDK's spans and the exporter's encoder."""

from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from benchmarks.libraries.alternation import alternate
from shared.telemetry.spans.facts import SpanFacts
from shared.telemetry.spans.otlp_encoding import encode_request, encode_span

SPANS, BATCHES = 60, 50
ATTRIBUTES: dict[str, Any] = {"group": "g0", "steps": 719, "computed_ms": 5036.974, "attempt": 1}


async def measure(rounds: int) -> None:
    """Prints what a span costs."""
    facts = [
        SpanFacts(name="decode", kind="internal", trace_id=f"{7:032x}", span_id=f"{number + 1:016x}",
                  parent_id=f"{1:016x}", begin_ns=number, end_ns=number + 5, attributes=ATTRIBUTES)
        for number in range(SPANS)
    ]  # fmt: skip
    about = {"service.name": "ryz-worker", "service.instance.id": "g0"}
    resource, scope = Resource(about), InstrumentationScope("ryzanstein")

    async def ours() -> int:
        for _ in range(BATCHES):
            encode_request(about, "ryzanstein", [encode_span(one, 10**18) for one in facts])
        return SPANS * BATCHES

    async def library() -> int:
        for _ in range(BATCHES):
            encode_spans([_readable(one, resource, scope) for one in facts]).SerializeToString()
        return SPANS * BATCHES

    await alternate("a span encoded", ours, library, rounds=rounds)


def _readable(facts: SpanFacts, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    trace_id, sampled = int(facts.trace_id, 16), TraceFlags(TraceFlags.SAMPLED)
    return ReadableSpan(
        name=facts.name,
        context=SpanContext(trace_id, int(facts.span_id, 16), is_remote=False, trace_flags=sampled),
        parent=SpanContext(trace_id, int(facts.parent_id, 16), is_remote=False, trace_flags=sampled),
        kind=SpanKind.INTERNAL,
        start_time=facts.begin_ns + 10**18,
        end_time=facts.end_ns + 10**18,
        attributes=dict(facts.attributes),
        resource=resource,
        instrumentation_scope=scope,
    )
