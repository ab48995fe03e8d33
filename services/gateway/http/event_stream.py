"""Writes events as bytes of server-sent events, and sends an answer while its text arrives.

The headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

from services.gateway.admission.refusals import ErrorAnswer, Headers
from services.gateway.answering.answer import Answer
from services.gateway.answering.answer_events import AnswerEvents, EventBatch
from services.gateway.answering.event_ids import NOTHING_YET, UNNUMBERED, EventId
from services.gateway.answering.format import EventWriter, StreamEvent
from services.gateway.http.serving_route import HttpExchange

_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


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


async def send_events(
    answer: Answer,
    writer: EventWriter,
    exchange: HttpExchange,
    *,
    header_wait_s: float,
    last: EventId = NOTHING_YET,
) -> None:
    """Sends all events of an answer.

    Args:
        answer: Its generations run already.
        writer: Makes the events.
        exchange: Its reply gets them; after an error `reply.started` tells whether a status was sent.
        header_wait_s: Seconds that the headers wait for the first text.
        last: The last event that the client has.

    Raises:
        RyzError: A generation failed.
    """

    def write_failure(failed: ErrorAnswer) -> bytes:
        return encoded_event(writer.failure(failed))

    exchange.write_failure = write_failure
    events, reply = AnswerEvents(answer, writer, last), exchange.reply
    await events.open(header_wait_s)
    await reply.start_stream([*_HEADERS, *exchange.caller.outcome.headers()])
    while not events.ended:
        batch = await events.next_batch()
        await reply.send_part(encoded_batch(batch, ids=answer.event_ids), more=not events.ended)
