"""What is exported of a request. These types need no OpenTelemetry SDK: clients elsewhere carry them, too."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shared.telemetry.spans.trace_ids import new_span_id

Attribute = str | int | float | bool | list[str]
Kind = Literal["internal", "server", "client"]


@dataclass(slots=True)  # not frozen: that would make it three times slower, and a request has sixty
class SpanFacts:
    """One span.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: The span that it is a part of; empty: it is the first of its trace.
        begin_ns: On this process's monotonic clock.
        end_ns: The same.
        attributes: What is known of it; never text of prompts and answers.
        kind: Its role in the call.
        error: Why it failed; empty: it did not.
        span_id: 16 hexadecimal digits.
        events: Moments in it: their names and times.
    """

    name: str
    trace_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Attribute] = field(default_factory=dict)
    kind: Kind = "internal"
    error: str = ""
    span_id: str = field(default_factory=new_span_id)
    events: tuple[tuple[str, int], ...] = ()


MakeSpans = Callable[[], Iterable[SpanFacts]]


class SpanSink(Protocol):
    """Takes the spans of requests that are recorded."""

    def submit(self, make: MakeSpans) -> None:
        """Has the spans made and exported later, in another thread; drops and counts what is too many.

        Args:
            make: Makes them. It is called once and may not touch what changes.
        """
        ...
