"""Records when a request passed each point of this process, so that its time can be explained afterwards.

A timeline is a list of moments, in the order in which they were marked. The newest requests are kept, up to
a bound; `ryz explain` asks all services for theirs (`shared/messages/timelines.py`). To mark a moment costs
half a microsecond, so it is always done.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from shared.messages import Moment, Timeline

MAX_MOMENTS = 64  # of one timeline; later ones are counted only
Data = dict[str, str | int | float]


class MarkedMoment(NamedTuple):
    """A moment of a timeline, on the clock of its process."""

    name: str
    at_ns: int
    data: Data


class RequestTimeline:
    """The moments of one attempt at a request in this process."""

    __slots__ = ("_clock", "_marks", "attempt", "left_out", "request_id")

    def __init__(self, request_id: str, attempt: int, clock: Callable[[], int]) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.left_out = 0
        self._clock = clock
        # name, nanoseconds, data of one moment after the other: a tuple for each would cost the garbage
        # collector as much as the rest
        self._marks: list[Any] = []

    def mark(self, name: str, data: Data | None = None) -> None:
        """Notes that the request is at this point now; `data` belongs to the timeline from then on."""
        marks = self._marks
        if len(marks) < 3 * MAX_MOMENTS:
            marks += (name, self._clock(), data)
        else:
            self.left_out += 1

    def mark_again(self, name: str, data: Data | None = None) -> None:
        """Like `mark`, but in place of the last moment if that has the same name: what repeats takes one."""
        marks = self._marks
        if marks and marks[-3] == name:
            marks[-2:] = (self._clock(), data)
        else:
            self.mark(name, data)

    def marked(self) -> list[MarkedMoment]:
        """The moments so far."""
        marks = iter(self._marks)
        return [
            MarkedMoment(name, at_ns, data or {})
            for name, at_ns, data in zip(marks, marks, marks, strict=True)
        ]

    def shown(self, offset_ns: int) -> Timeline:
        """The timeline as it travels; `offset_ns` added to its clock gives the time since 1970."""
        moments = [
            Moment(name=name, at_us=(at_ns + offset_ns) // 1000, data=data)
            for name, at_ns, data in self.marked()
        ]
        return Timeline(
            request_id=self.request_id, attempt=self.attempt, moments=moments, left_out=self.left_out
        )


class _Unrecorded(RequestTimeline):
    """Takes marks and keeps none."""

    __slots__ = ()

    def mark(self, name: str, data: Data | None = None) -> None:
        """Does nothing."""


UNRECORDED: RequestTimeline = _Unrecorded("", 0, time.monotonic_ns)


class Timelines:
    """The timelines of the newest requests.

    Args:
        capacity: How many are kept; 0: none are made.
        clock: Nanoseconds that never go back. They become times since 1970 when they are asked for, so that a
            clock that is set does not tear a request apart.
    """

    def __init__(self, capacity: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._kept: deque[RequestTimeline] = deque(maxlen=capacity)
        self._clock = clock

    def begin(self, request_id: str, attempt: int = 0, *, traced: bool = False) -> RequestTimeline:
        """Begins a timeline; the oldest one goes if there are too many.

        Args:
            traced: Spans are made out of it, so it is recorded also where none are kept.
        """
        timeline = self.draft(request_id, attempt, traced=traced)
        self.keep(timeline)
        return timeline

    def draft(self, request_id: str, attempt: int = 0, *, traced: bool = False) -> RequestTimeline:
        """Like `begin`, for a timeline that may turn out not to be worth keeping; see `keep`."""
        if not (self._kept.maxlen or traced):
            return UNRECORDED
        return RequestTimeline(request_id, attempt, self._clock)

    def keep(self, timeline: RequestTimeline) -> None:
        """Keeps a timeline that was drafted."""
        if timeline is not UNRECORDED:
            self._kept.append(timeline)

    def find(self, beginning: str, limit: int) -> list[Timeline]:
        """The timelines of requests whose ids begin so, the newest `limit` of them, in their order."""
        offset_ns = time.time_ns() - self._clock()
        found = [one.shown(offset_ns) for one in self._kept if one.request_id.startswith(beginning)]
        return found[-limit:]
