"""Ids of events, by which a client tells where its stream stopped.

An id is `<seq>.<left>`: the number of the frame that the event comes from, and how many events of that frame
follow it. Events are a pure function of the frames, so every gateway gives an event the same id.
"""

import re
from dataclasses import dataclass
from typing import TypeVar

from shared.errors import InvalidRequest

UNNUMBERED = -1  # in place of the number of a frame: its events get no ids
_ID = re.compile(r"(\d{1,9})(?:\.(\d{1,6}))?")
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class EventId:
    """The last event that a client has; a number alone stands for the last event of that frame."""

    seq: int
    left: int = 0

    def needs_from(self, first_seq: int) -> bool:
        """Returns whether the client still needs an event from before that frame."""
        return self.seq + 1 < first_seq or (self.seq + 1 == first_seq and self.left > 0)


NOTHING_YET = EventId(-1)


def parse_event_id(text: str) -> EventId:
    """Parses an id; an empty text stands for the beginning.

    Raises:
        InvalidRequest: It is no id.
    """
    if not text:
        return NOTHING_YET
    found = _ID.fullmatch(text)
    if found is None or not text.isascii():
        raise InvalidRequest(
            f"the id of an event looks like 17.0, got {text[:32]!r}; send the last one that came, "
            "in the header Last-Event-ID or as ?from=",
            param="Last-Event-ID",
        )
    return EventId(int(found[1]), int(found[2] or 0))


def what_follows(events: list[Event], seq: int, last: EventId) -> list[Event]:
    """The events of frame `seq` that come after the last one that the client has."""
    if seq != last.seq:
        return events if seq > last.seq else []
    return events[max(0, len(events) - last.left) :]
