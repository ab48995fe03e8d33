"""The encoded spans are those that OpenTelemetry's own encoder makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shared.telemetry.spans.facts import Attribute, Kind, SpanFacts
from shared.telemetry.spans.otlp_encoding import encode_request, encode_span

KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
}
RECORDED = TraceFlags(TraceFlags.SAMPLED)
OFFSET_NS = 1_700_000_000_000_000_000
RESOURCE: dict[str, Attribute] = {"service.name": "gateway", "service.instance.id": "g-1"}

texts = st.text(max_size=200).filter(lambda text: "\ud800" not in text)
values = (
    texts
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.lists(texts, max_size=3)
)
ids = st.integers(1, 2**64 - 1)
spans = st.builds(
    SpanFacts,
    name=texts,
    trace_id=st.integers(1, 2**128 - 1).map("{:032x}".format),
    parent_id=st.just("") | ids.map("{:016x}".format),
    begin_ns=st.integers(0, 2**50),
    end_ns=st.integers(0, 2**50),
    attributes=st.dictionaries(st.text(min_size=1, max_size=30), values, max_size=4),
    kind=st.sampled_from(list(KINDS)),
    error=st.just("") | texts,
    span_id=ids.map("{:016x}".format),
    events=st.lists(st.tuples(texts, st.integers(0, 2**50)), max_size=2).map(tuple),
)


def theirs(facts: SpanFacts) -> ReadableSpan:
    def context(span_id: str) -> SpanContext:
        return SpanContext(int(facts.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=RECORDED)

    return ReadableSpan(
        facts.name,
        context(facts.span_id),
        context(facts.parent_id) if facts.parent_id else None,
        Resource(RESOURCE),
        facts.attributes,
        [Event(name, timestamp=at_ns + OFFSET_NS) for name, at_ns in facts.events],
        kind=KINDS[facts.kind],
        status=Status(StatusCode.ERROR, facts.error) if facts.error else Status(),
        start_time=facts.begin_ns + OFFSET_NS,
        end_time=facts.end_ns + OFFSET_NS,
        instrumentation_scope=InstrumentationScope("ryzanstein"),
    )


@given(st.lists(spans, min_size=1, max_size=5))
def test_spans_are_encoded_as_by_opentelemetry(facts: list[SpanFacts]) -> None:
    ours = encode_request(RESOURCE, "ryzanstein", [encode_span(one, OFFSET_NS) for one in facts])
    wanted = encode_spans([theirs(one) for one in facts])
    for span in wanted.resource_spans[0].scope_spans[0].spans:
        span.flags |= RECORDED  # which it leaves out
        if not span.status.code:
            span.ClearField("status")  # which it writes without content
    assert ExportTraceServiceRequest.FromString(ours) == wanted


@pytest.mark.parametrize("value", [True, 1, 1.0, "1", -1, 0, False])
def test_equal_values_of_different_types_stay_apart(value: str | float) -> None:
    for other in (True, 1, 1.0, "1"):  # what a cache by equality would mix up
        encode_span(SpanFacts("a", "1" * 32, "", 1, 2, {"key": other}), 0)
    facts = SpanFacts("a", "1" * 32, "", 1, 2, {"key": value})
    ours = ExportTraceServiceRequest.FromString(encode_request({}, "s", [encode_span(facts, 0)]))
    (attribute,) = ours.resource_spans[0].scope_spans[0].spans[0].attributes
    kind = str(attribute.value.WhichOneof("value"))
    found = getattr(attribute.value, kind)
    assert (type(found), found) == (type(value), value)
