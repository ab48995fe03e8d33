"""Events as the bytes of server-sent events, with ids if they are asked for. Pure."""

from services.gateway.answering.answer_events import EventBatch
from services.gateway.answering.event_ids import UNNUMBERED
from services.gateway.answering.format import StreamEvent


def encoded_batch(batch: EventBatch, *, ids: bool) -> bytes:
    """The bytes of events; with `ids`, those of frames have the id `<frame>.<events that follow in it>`."""
    pieces: list[bytes] = []
    for seq, events in batch:
        left = len(events)
        for event in events:
            left -= 1
            if ids and seq != UNNUMBERED:
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
