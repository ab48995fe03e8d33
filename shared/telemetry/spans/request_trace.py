"""The trace of a recorded request: its ids, and the spans of the attempts that this process makes at it.

A request that is not recorded has none of these objects.
"""

import time
from contextvars import ContextVar
from typing import NamedTuple

from shared.telemetry.spans.facts import Attribute, SpanFacts, SpanSink
from shared.telemetry.spans.names import OFFERED_AGAIN
from shared.telemetry.spans.trace_ids import TraceParent, new_span_id
from shared.telemetry.timelines import MarkedMoment, RequestTimeline

CURRENT_TRACE: ContextVar["RequestTrace | None"] = ContextVar("ryz_trace", default=None)


class RequestTrace:
    """The ids of a recorded request in the process that began it.

    Attributes:
        parent_id: The caller's span; empty: the trace begins here.
        span_id: The span of the whole request.
    """

    __slots__ = ("began_ns", "parent_id", "sink", "span_id", "streams", "trace_id")

    def __init__(self, trace_id: str, sink: SpanSink, parent_id: str = "") -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.span_id = new_span_id()
        self.sink = sink
        self.began_ns = time.monotonic_ns()
        self.streams: list[StreamTrace] = []

    @property
    def header(self) -> str:
        """The `traceparent` of what the request leads to."""
        return TraceParent(self.trace_id, self.span_id).header

    def add_stream(self, model: str) -> "StreamTrace":
        """The trace of one of its generations."""
        stream = StreamTrace(self, model)
        self.streams.append(stream)
        return stream


class StreamTrace:
    """The trace of one generation: each attempt is a span, and those of router and leader lie below it."""

    __slots__ = ("_attempts", "_began_ns", "_model", "_trace", "first_ns", "last_ns")

    def __init__(self, trace: RequestTrace, model: str) -> None:
        self._trace = trace
        self._model = model
        self._began_ns = time.monotonic_ns()
        self._attempts: dict[int, str] = {}  # span ids
        self.first_ns = self.last_ns = 0

    def header(self, attempt: int) -> str:
        """The `traceparent` of the messages of an attempt."""
        span_id = self._attempts.get(attempt)
        if span_id is None:
            span_id = self._attempts[attempt] = new_span_id()
        return TraceParent(self._trace.trace_id, span_id).header

    def end(self, timeline: RequestTimeline, problem: str = "") -> None:
        """Has the spans of its attempts exported.

        Args:
            timeline: When the generation passed the parts of the client.
            problem: The code of the error that ended it; empty: none did.
        """
        trace, marks, now_ns = self._trace, timeline.marked(), time.monotonic_ns()
        attempts, began_ns = dict(self._attempts), self._began_ns
        published = [mark.at_ns for mark in marks if mark.name == "published"]
        last = [mark.at_ns for mark in marks if mark.name == "last frame"]
        self.first_ns, self.last_ns = (
            (published[0] if published else began_ns),
            (last[-1] if last else now_ns),
        )
        ids = _Ids(trace.trace_id, trace.span_id, self._model)
        trace.sink.submit(lambda: _attempt_spans(ids, attempts, marks, (began_ns, now_ns), problem))


class _Ids(NamedTuple):
    trace_id: str
    parent_id: str
    model: str


def _attempt_spans(
    ids: _Ids,
    attempts: dict[int, str],
    marks: list[MarkedMoment],
    limits_ns: tuple[int, int],
    problem: str,
) -> list[SpanFacts]:
    trace_id, parent_id, model = ids
    began_ns, ended_ns = limits_ns
    if not attempts:  # taken over from another gateway, whose trace has the first attempts
        attributes: dict[str, Attribute] = {"gen_ai.request.model": model}
        return [SpanFacts("attached", trace_id, parent_id, began_ns, ended_ns, attributes, "client", problem)]
    begins = {number: _first(marks, "published", number, began_ns) for number in attempts}
    numbers = sorted(attempts, key=lambda number: begins[number])
    spans: list[SpanFacts] = []
    for index, number in enumerate(numbers):
        later = numbers[index + 1 :]
        begin_ns = begins[number]
        end_ns = begins[later[0]] if later else _first(marks, "last frame", number, ended_ns)
        attributes = {"ryz.attempt": number, "gen_ai.request.model": model, "messaging.system": "nats"}
        mine = [mark for mark in marks if mark.data.get("attempt", number) == number]
        for mark in mine:
            if mark.name == "published" and "lost" in mark.data:
                attributes |= {f"ryz.{name}": value for name, value in mark.data.items() if name != "attempt"}
            elif mark.name == OFFERED_AGAIN:
                attributes |= {"ryz.asked": mark.data["asked"], "ryz.refused": mark.data["reason"]}
            elif mark.name == "accepted":
                attributes["ryz.group"] = mark.data.get("group", "")
        error = "its group was lost" if later else problem
        span_id = attempts[number]
        spans.append(
            SpanFacts(
                f"attempt {number}",
                trace_id,
                parent_id,
                begin_ns,
                end_ns,
                attributes,
                "client",
                error,
                span_id,
            )
        )
        accepted = [mark.at_ns for mark in mine if mark.name == "accepted" and mark.at_ns <= end_ns]
        split_ns = accepted[0] if accepted else end_ns
        spans.append(SpanFacts("wait for a group", trace_id, span_id, begin_ns, split_ns))
        if split_ns < end_ns:
            firsts = tuple((mark.name, mark.at_ns) for mark in mine if mark.name == "first frame")
            spans.append(SpanFacts("frames", trace_id, span_id, split_ns, end_ns, events=firsts))
    return spans


def _first(marks: list[MarkedMoment], name: str, attempt: int, otherwise_ns: int) -> int:
    for mark in marks:
        if mark.name == name and mark.data.get("attempt", attempt) == attempt:
            return mark.at_ns
    return otherwise_ns
