"""Builds events of Chrome's trace format, which Perfetto, chrome://tracing and speedscope read. Pure.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event
Format). Times are microseconds; a process and its threads have names and an order.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

Event = dict[str, Any]
# Times are rounded to these parts of a microsecond, which floating point holds exactly: viewers add begin and
# length, and a span must not end behind the one that begins with its end.
_PARTS = 128


class Track(NamedTuple):
    """A thread of a process."""

    pid: int
    tid: int


class TimedEvent(NamedTuple):
    """What took from one time to another."""

    name: str
    begin_ns: int
    end_ns: int
    data: dict[str, object]


class EventList:
    """Events of all processes of a profile.

    Args:
        zero_ns: What becomes the time 0.
    """

    def __init__(self, zero_ns: int) -> None:
        self.events: list[Event] = []
        self._zero_ns = zero_ns

    def name_process(self, pid: int, name: str) -> None:
        """Names a process; processes are shown in the order of their numbers."""
        self._describe("process_name", pid, 0, name=name)
        self._describe("process_sort_index", pid, 0, sort_index=pid)

    def name_thread(self, track: Track, name: str) -> None:
        """Names a thread; threads are shown in the order of their numbers."""
        self._describe("thread_name", track.pid, track.tid, name=name)
        self._describe("thread_sort_index", track.pid, track.tid, sort_index=track.tid)

    def add_span(
        self, track: Track, name: str, kind: str, begin_ns: int, end_ns: int, **data: object
    ) -> None:
        """Adds what a thread did from one time to another; spans of a thread nest, or do not overlap."""
        event: Event = {
            "name": name,
            "cat": kind,
            "ph": "X",
            "pid": track.pid,
            "tid": track.tid,
            "ts": self._us(begin_ns),
            "dur": self._us(end_ns) - self._us(begin_ns),
        }
        if data:
            event["args"] = data
        self.events.append(event)

    def add_lanes(self, track: Track, name: str, kind: str, spans: Iterable[TimedEvent]) -> None:
        """Adds spans that may overlap: on as many threads as needed, from `track` on."""
        ends: list[int] = []
        for span in sorted(spans, key=lambda one: one.begin_ns):
            lane = next((lane for lane, end_ns in enumerate(ends) if end_ns <= span.begin_ns), len(ends))
            own = Track(track.pid, track.tid + lane)
            if lane == len(ends):
                ends.append(0)
                self.name_thread(own, name)
            ends[lane] = span.end_ns
            self.add_span(own, span.name, kind, span.begin_ns, span.end_ns, **span.data)

    def add_counts(self, pid: int, name: str, at_ns: int, **counts: int) -> None:
        """Adds the values of a diagram from that time on."""
        event = {"name": name, "ph": "C", "pid": pid, "tid": 0, "ts": self._us(at_ns), "args": counts}
        self.events.append(event)

    def add_arrow(self, number: int, start: tuple[Track, int], end: tuple[Track, int]) -> None:
        """Adds an arrow between two spans; start and end are a thread and a time inside of the span."""
        for phase, (track, at_ns) in (("s", start), ("f", end)):
            arrow = {"name": "plan", "cat": "plan", "ph": phase, "pid": track.pid, "tid": track.tid}
            binding = {"bp": "e"} if phase == "f" else {}
            self.events.append({**arrow, **binding, "id": number, "ts": self._us(at_ns)})

    def _us(self, at_ns: int) -> float:
        return round((at_ns - self._zero_ns) * _PARTS / 1000) / _PARTS

    def _describe(self, what: str, pid: int, tid: int, **data: object) -> None:
        self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": data})
