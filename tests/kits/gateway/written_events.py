"""Events of writers as the bytes of server-sent events."""

from collections.abc import Iterable

from services.gateway.answering.events.ports import StreamEvent
from services.gateway.answering.resumption.event_ids import UNNUMBERED
from services.gateway.transports.http.server_sent_events import encoded_batch


def sse(*frames: Iterable[StreamEvent]) -> bytes:
    """The bytes of the events of frames, without ids."""
    return encoded_batch([(UNNUMBERED, list(events)) for events in frames], ids=False)


def numbered(*frames: tuple[int, list[StreamEvent]]) -> bytes:
    """The bytes of the events of numbered frames, with ids."""
    return encoded_batch(list(frames), ids=True)
