"""The events of background responses that this gateway keeps for readers, bounded by their bytes.

When the room is full, the events of responses that have ended go first, the oldest before others: they can be
made again from the record. If that is not enough, the response that needs room loses its events so far.
"""

from collections.abc import Sequence

from services.gateway.formats.responses.events import ResponseEvent


class EventsGone(Exception):
    """The events that a reader needs are kept no longer."""


class EventRoom:
    """The bytes that all kept events may take.

    Args:
        limit: Bytes; a batch of events may pass it for a moment.

    Attributes:
        held: Bytes that are kept.
    """

    def __init__(self, limit: int) -> None:
        self.held = 0
        self._limit = limit
        self._ended: dict[KeptEvents, None] = {}  # the oldest first

    def take_bytes(self, taker: "KeptEvents", size: int) -> None:
        """Takes bytes, and drops events if there are too many."""
        self.held += size
        while self.held > self._limit and self._ended:
            next(iter(self._ended)).forget()
        if self.held > self._limit:
            taker.drop()

    def free_bytes(self, size: int) -> None:
        """Gives bytes back."""
        self.held -= size

    def note_end(self, events: "KeptEvents") -> None:
        """Takes note that these events can be made again."""
        self._ended[events] = None

    def leave(self, events: "KeptEvents") -> None:
        """Takes note that these events are gone."""
        self._ended.pop(events, None)


class KeptEvents:
    """The events of one response, numbered from 0 without gaps.

    Args:
        room: Bounds their bytes.

    Attributes:
        first: The number of the oldest event that is kept.
    """

    def __init__(self, room: EventRoom) -> None:
        self.first = 0
        self._room = room
        self._events: list[ResponseEvent] = []
        self._num_bytes = 0

    def append(self, events: Sequence[ResponseEvent]) -> None:
        """Keeps the next events, whatever earlier ones must go for them."""
        size = sum(len(event.data) for event in events)
        self._room.take_bytes(self, size)
        self._events += events
        self._num_bytes += size

    def above(self, number: int) -> list[ResponseEvent]:
        """The events after number `number`; -1: all.

        Raises:
            EventsGone: Some of them are kept no longer.
        """
        if not self.has(number):
            raise EventsGone
        return self._events[number + 1 - self.first :]

    def has(self, number: int) -> bool:
        """Returns whether all events after number `number` are kept, or still to come."""
        return number + 1 >= self.first

    def drop(self) -> None:
        """Drops the events so far."""
        self.first += len(self._events)
        self._events.clear()
        self._room.free_bytes(self._num_bytes)
        self._num_bytes = 0

    def end(self) -> None:
        """The response has ended and is in the store."""
        self._room.note_end(self)

    def forget(self) -> None:
        """Drops all events, and none will come."""
        self.drop()
        self._room.leave(self)
