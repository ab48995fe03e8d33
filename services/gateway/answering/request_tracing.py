"""Decides which requests are recorded in a trace, and makes the gateway's spans of them when they are over.

The trace of a request without a context of its caller's has an id that follows from the request's, so a
stream that is resumed at another gateway goes on in the same trace (`shared/telemetry/spans/trace_ids.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from services.gateway.admission.caller import CallOutcome
from services.gateway.admission.request_headers import RawHeaders
from shared.telemetry.spans.facts import Attribute, SpanFacts, SpanSink
from shared.telemetry.spans.names import SPANS
from shared.telemetry.spans.request_trace import RequestTrace
from shared.telemetry.spans.trace_ids import TraceParent, is_in_share, trace_id_of_request
from shared.telemetry.timelines import MarkedMoment

# OpenTelemetry's names of operations, `gen_ai.operation.name`
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
}


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request that is over.

    Attributes:
        route: The path of its route.
        method: Of HTTP.
        status: Of the answer.
        failure: The code of the error that ended a stream which had begun; empty: none did.
        shown_id: The id of the answer.
        request_id: The id of the request as it travelled.
        tenant: Whose it was.
        model: That was asked for.
        outcome: What became of its generations.
        marks: When it passed the parts of the gateway.
    """

    route: str
    method: str
    status: int
    failure: str
    shown_id: str
    request_id: str
    tenant: str
    model: str
    outcome: CallOutcome
    marks: list[MarkedMoment]


class RequestTracing:
    """Begins and ends the traces of one gateway's requests.

    Args:
        sink: Takes the spans.
        ratio: The share of requests without a trace of the caller's that is recorded.
    """

    def __init__(self, sink: SpanSink, ratio: float) -> None:
        self._sink = sink
        self._ratio = ratio

    def begin(self, headers: RawHeaders, request_id: str) -> RequestTrace | None:
        """Returns the trace of a request; None: it is not recorded.

        A caller that sends a trace context has decided whether its request is recorded.
        """
        given = headers.get(b"traceparent")
        parent = TraceParent.read(given.decode("latin-1")) if given else None
        if parent is not None:
            return RequestTrace(parent.trace_id, self._sink, parent.span_id) if parent.sampled else None
        trace_id = trace_id_of_request(request_id)
        return RequestTrace(trace_id, self._sink) if is_in_share(trace_id, self._ratio) else None

    def end(self, trace: RequestTrace, request: AnsweredRequest) -> None:
        """Has the gateway's spans of a request exported."""
        streams = [(stream.first_ns, stream.last_ns) for stream in trace.streams if stream.last_ns]
        self._sink.submit(lambda: _spans(trace, request, streams))


def _spans(
    trace: RequestTrace, request: AnsweredRequest, streams: list[tuple[int, int]]
) -> Iterator[SpanFacts]:
    marks, ids = request.marks, (trace.trace_id, trace.span_id)
    operation = OPERATIONS.get(request.route, "")
    generates = operation and request.model
    name = f"{operation} {request.model}" if generates else f"{request.method} {request.route}"
    error = request.failure or (f"status {request.status}" if request.status >= 500 else "")
    begin_ns, end_ns = marks[0].at_ns, marks[-1].at_ns
    attributes = _described(request, operation)
    yield SpanFacts(name, ids[0], trace.parent_id, begin_ns, end_ns, attributes, "server", error, ids[1])
    read_ns = next((mark.at_ns for mark in marks if mark.name == "read"), begin_ns)
    first_ns = min((first for first, _ in streams), default=end_ns)
    last_ns = max((last for _, last in streams), default=end_ns)
    for moment, since_ns, until_ns in (
        ("read", begin_ns, read_ns),
        ("published", read_ns, first_ns),
        ("answered", last_ns, end_ns),
    ):
        if since_ns < until_ns:
            yield SpanFacts(SPANS["gateway", moment], *ids, since_ns, until_ns)


def _described(request: AnsweredRequest, operation: str) -> dict[str, Attribute]:
    outcome = request.outcome
    attributes: dict[str, Attribute] = {
        "http.request.method": request.method,
        "http.route": request.route,
        "http.response.status_code": request.status,
        "ryz.request_id": request.request_id,
        "ryz.tenant": request.tenant,
    }
    if request.failure or request.status >= 400:
        attributes["error.type"] = request.failure or str(request.status)
    if operation and request.model:
        attributes |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ryzanstein",
            "gen_ai.request.model": request.model,
            "gen_ai.response.id": request.shown_id,
            "gen_ai.usage.input_tokens": sum(usage.prompt_tokens for usage in outcome.usages),
            "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in outcome.usages),
        }
    if outcome.group:
        attributes["ryz.group"] = outcome.group
    if outcome.accepted is not None:
        attributes |= {"ryz.route.reason": outcome.accepted.reason, "ryz.kv": outcome.accepted.kv}
    return attributes
