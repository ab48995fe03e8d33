"""Events as the bytes of server-sent events, with ids if they are asked for. Pure."""

from services.gateway.answering.events.ports import EventBatch, StreamEvent
from services.gateway.answering.resumption.event_ids import UNNUMBERED


def encoded_batch(batch: EventBatch, *, ids: bool, numbered: bool = False) -> bytes:
    """The bytes of events.

    Args:
        batch: The events.
        ids: Those of frames have the id `<frame>.<events that follow in it>`.
        numbered: The events themselves are numbered; then their numbers are the ids.
    """
    pieces: list[bytes] = []
    for seq, events in batch:
        left = len(events)
        for event in events:
            left -= 1
            if ids and seq != UNNUMBERED:
                if numbered:
                    pieces.append(b"event: %b\nid: %d\ndata: %b\n\n" % (event[0], seq, event[1]))
                    continue
                pieces.append(b"id: %d.%d\n" % (seq, left))
            pieces.append(encoded_event(event))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def encoded_event(event: StreamEvent) -> bytes:
    """The bytes of one event without an id; one without data is a comment, which clients skip."""
    kind, data = event
    if not data:
        return b": " + kind + b"\n\n"
    if kind:
        return b"event: %b\ndata: %b\n\n" % (kind, data)
    return b"data: " + data + b"\n\n"
