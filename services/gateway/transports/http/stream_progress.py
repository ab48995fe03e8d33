"""The beginning of a stream of events that says what its answer waits for, before the answer is accepted."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from services.gateway.admission.errors.refusals import Headers
from services.gateway.transports.http.exchange import HttpExchange
from services.gateway.transports.http.server_sent_events import encoded_event

EVENT_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
PROGRESS_S = 1.0  # between two comments


async def open_with_progress(
    work: Coroutine[Any, Any, None], exchange: HttpExchange, progress: Callable[[], str]
) -> None:
    """Waits until an answer is open, and sends a comment each `PROGRESS_S` that it waits for its model.

    Args:
        work: Opens the events; what it raises is raised here.
        exchange: Its reply begins with the first comment.
        progress: Says what the answer waits for; empty: for nothing.
    """
    opening, reply = asyncio.create_task(work), exchange.reply
    try:
        while True:
            await asyncio.wait({opening}, timeout=PROGRESS_S)
            if opening.done():
                return opening.result()
            if said := progress():
                if not reply.started:
                    await reply.start_stream([*EVENT_HEADERS, *exchange.caller.outcome.headers()])
                comment = " ".join(f"waiting: {said}".split()).encode()
                await reply.send_part(encoded_event((comment, b"")), more=True)
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
