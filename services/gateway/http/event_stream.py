"""Sends an answer as server-sent events while its text arrives.

The headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

import asyncio

from services.gateway.admission.refusals import Headers
from services.gateway.answering.answer import Answer
from services.gateway.answering.format import EventWriter
from services.gateway.answering.frame_sources import PromptFrames
from services.gateway.http.reply import Reply
from services.gateway.http.serving_route import HttpExchange

PING_S = 10.0  # between two pings while no text comes
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


async def send_events(
    answer: Answer, writer: EventWriter, exchange: HttpExchange, *, header_wait_s: float
) -> None:
    """Sends all events of an answer.

    Args:
        answer: Its generations run already.
        writer: Makes the events.
        exchange: Its reply gets them. After an error `reply.started` tells whether a status can still be sent.
        header_wait_s: Seconds that the headers wait for the first text.

    Raises:
        RyzError: A generation failed.
    """
    exchange.write_failure = writer.failure
    await answer.wait_accepted()
    data = await _send(answer, writer, exchange, header_wait_s)
    end = answer.end()
    last = writer.closing(end.usages, end.last_seq, end.session)
    await answer.confirm()
    await exchange.reply.send_part(data + last, more=False)


async def _send(answer: Answer, writer: EventWriter, exchange: HttpExchange, header_wait_s: float) -> bytes:
    """Sends all events but the last ones, which it returns: they go out with the closing."""
    reply, outcome = exchange.reply, exchange.caller.outcome
    data = writer.opening(outcome.accepted)
    item: PromptFrames | None = PromptFrames(0, [])
    try:
        async with asyncio.timeout(header_wait_s):
            item = await answer.next_frames()
    except TimeoutError:
        pass  # a slow start is no failure: the headers go out, the text follows
    await reply.start_stream([*_HEADERS, *outcome.headers()])
    while item is not None:
        for frame in item.frames:
            if frame.prompt is not None:
                data += writer.begin(frame.prompt)
            data += writer.deltas(frame.deltas, item.prompt, frame.seq)
        if data and not answer.exhausted:
            await reply.send_part(data)
            data = b""
        item = await _next_frames(answer, writer, reply)
    return data


async def _next_frames(answer: Answer, writer: EventWriter, reply: Reply) -> PromptFrames | None:
    """The next frames; while none come, pings are sent if the format has them."""
    ping = writer.ping()
    while ping:
        try:
            async with asyncio.timeout(PING_S):
                return await answer.next_frames()
        except TimeoutError:
            await reply.send_part(ping)
    return await answer.next_frames()
