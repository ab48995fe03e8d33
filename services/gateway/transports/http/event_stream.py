"""Writes events as bytes of server-sent events, and sends an answer while its text arrives.

The headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

from services.gateway.admission.errors.refusals import ErrorAnswer, Headers
from services.gateway.answering.events.source import EventSource
from services.gateway.transports.http.exchange import HttpExchange
from services.gateway.transports.http.server_sent_events import encoded_batch, encoded_event

EVENT_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


async def send_events(
    events: EventSource,
    exchange: HttpExchange,
    *,
    header_wait_s: float,
    ids: bool,
) -> None:
    """Sends all events of an answer.

    Args:
        events: Of an answer, inside its block.
        exchange: Its reply gets them; after an error `reply.started` tells whether a status was sent.
        header_wait_s: Seconds that the headers wait for the first text.
        ids: The events have ids.

    Raises:
        RyzError: A generation failed.
    """
    reply = exchange.reply

    def write_failure(failed: ErrorAnswer) -> bytes:
        return encoded_event(events.failure(failed))

    exchange.write_failure = write_failure
    await events.open(header_wait_s)
    await reply.start_stream([*EVENT_HEADERS, *exchange.caller.outcome.headers()])
    while not events.ended:
        batch = await events.next_batch()
        await reply.send_part(encoded_batch(batch, ids=ids, numbered=events.numbered), more=not events.ended)
