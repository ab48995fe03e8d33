"""Sends an answer as server-sent events while its text arrives.

Headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

import asyncio
from collections.abc import Sequence

from services.gateway.chunks import ChunkWriter
from services.gateway.errors import Headers
from services.gateway.exchange import Outcome, Reply
from services.gateway.sources import Source, source_of
from shared.client import GenerationStream
from shared.messages import Delta

_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def send_events(
    streams: Sequence[GenerationStream],
    writer: ChunkWriter,
    reply: Reply,
    outcome: Outcome,
    *,
    header_wait_s: float,
) -> None:
    """Sends all of it; `outcome` learns how it goes.

    Raises what ended a generation early; `reply.started` tells whether there is still a status to choose.
    """
    for stream in streams:
        accepted = await stream.wait_accepted()
        outcome.group = outcome.group or accepted.group
        outcome.accepted = outcome.accepted or accepted
    source = source_of(streams)
    try:
        data = await _send(source, writer, reply, outcome, header_wait_s)
    finally:
        await source.close()
    outcome.usages = [stream.usage for stream in streams]
    await reply.part(data + writer.closing(outcome.usages), more=False)


async def _send(
    source: Source, writer: ChunkWriter, reply: Reply, outcome: Outcome, header_wait_s: float
) -> bytes:
    """Sends all events but the last ones, which it returns: they go with the closing."""
    data = writer.opening()
    item: tuple[int, list[Delta]] | None = (0, [])
    try:
        async with asyncio.timeout(header_wait_s):
            item = await source.next()
    except TimeoutError:
        pass  # a slow start is no failure: the headers go out, the text follows
    await reply.start([*_HEADERS, *outcome.headers()])
    while item is not None:
        prompt, deltas = item
        if deltas and not outcome.first_text_s:
            outcome.first_text_s = asyncio.get_running_loop().time()
        data += writer.deltas(deltas, prompt)
        if data and not source.ended:
            await reply.part(data)
            data = b""
        item = await source.next()
    return data
