"""Writes events as bytes of server-sent events, and sends an answer while its text arrives.

The headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

from collections.abc import Callable

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.answering.events.ports import EventSource
from services.gateway.transports.http.exchange import HttpExchange
from services.gateway.transports.http.server_sent_events import encoded_batch, encoded_event
from services.gateway.transports.http.stream_progress import EVENT_HEADERS, open_with_progress


async def send_events(
    events: EventSource,
    exchange: HttpExchange,
    *,
    header_wait_s: float,
    ids: bool,
    progress: Callable[[], str] | None = None,
) -> None:
    """Sends all events of an answer.

    Args:
        events: Of an answer, inside its block.
        exchange: Its reply gets them; after an error `reply.started` tells whether a status was sent.
        header_wait_s: Seconds that the headers wait for the first text.
        ids: The events have ids.
        progress: Says what the answer waits for before it is accepted; empty: for nothing. The caller gets
            that as comments, so that a refusal which follows is an event. None: it is not said.

    Raises:
        RyzError: A generation failed.
    """
    reply = exchange.reply

    def write_failure(failed: ErrorAnswer) -> bytes:
        return encoded_event(events.failure(failed))

    exchange.write_failure = write_failure
    if progress is None:
        await events.open(header_wait_s)
    else:
        await open_with_progress(events.open(header_wait_s), exchange, progress)
    if not reply.started:
        await reply.start_stream([*EVENT_HEADERS, *exchange.caller.outcome.headers()])
    while not events.ended:
        batch = await events.next_batch()
        await reply.send_part(encoded_batch(batch, ids=ids, numbered=events.numbered), more=not events.ended)
