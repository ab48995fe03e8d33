"""Spans of a call that came with a recorded trace, and of its parts, such as commands to Redis."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from shared.telemetry.request_ids import TRACE_PARENT
from shared.telemetry.spans.facts import SpanFacts, SpanSink
from shared.telemetry.spans.trace_ids import TraceParent, new_span_id

MAX_PARTS = 32  # of a call; later ones are left out


class CallTrace:
    """The trace of one call while it runs.

    Attributes:
        error: The code of its error; empty: none yet.
    """

    __slots__ = ("error", "parts", "span_id", "trace_id")

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.span_id = new_span_id()
        self.error = ""
        self.parts: list[SpanFacts] = []


_CURRENT: ContextVar[CallTrace | None] = ContextVar("ryz_call_trace", default=None)


@contextmanager
def recorded_call(sink: SpanSink | None, name: str, headers: Mapping[str, str]) -> Iterator[CallTrace | None]:
    """The block answers a call; its span is exported at the end. None: the call is not recorded."""
    parent = None if sink is None else TraceParent.read(headers.get(TRACE_PARENT, ""))
    if sink is None or parent is None or not parent.sampled:
        yield None
        return
    call, begin_ns = CallTrace(parent.trace_id), time.monotonic_ns()
    outer = _CURRENT.set(call)
    try:
        yield call
    finally:
        _CURRENT.reset(outer)
        end_ns = time.monotonic_ns()
        whole = SpanFacts(
            name, call.trace_id, parent.span_id, begin_ns, end_ns, {}, "server", call.error, call.span_id
        )
        spans = [whole, *call.parts]
        sink.submit(lambda: spans)


@contextmanager
def part_of_call(name: str) -> Iterator[None]:
    """The block is a part of the call that the running task answers."""
    call = _CURRENT.get()
    if call is None or len(call.parts) >= MAX_PARTS:
        yield
        return
    begin_ns = time.monotonic_ns()
    try:
        yield
    finally:
        end_ns = time.monotonic_ns()
        call.parts.append(SpanFacts(name, call.trace_id, call.span_id, begin_ns, end_ns, kind="client"))
