"""Sends an answer as server-sent events while its text arrives.

Headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from services.gateway.completions.chunks import ChunkWriter
from services.gateway.completions.sources import Piece, Source, source_of
from services.gateway.http.errors import Headers
from services.gateway.http.exchange import Outcome, Reply, Running
from services.gateway.http.limits import ClientDisconnected
from services.gateway.streams.detached_streams import Parking, StreamLeft
from shared.client import GenerationStream
from shared.errors import Cancelled, Overloaded, Unavailable

STREAM_HEADER = b"x-stream-id"
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


@asynccontextmanager
async def leaving(
    stream: GenerationStream,
    parking: Parking,
    running: Running,
    reply: Reply,
    grace_s: float,
    *,
    known: bool = False,
) -> AsyncIterator[None]:
    """Opens the stream, and on the way out cancels it if it still runs, unless its client may come back.

    known: the client knows the stream's id before the answer begins.

    Raises `StreamLeft` in place of what ended the request when the stream goes on and its client is not gone:
    the gateway stops, or the client did not read.
    """
    async with AsyncExitStack() as owner:
        await owner.enter_async_context(stream)
        running.streams.append(stream)
        try:
            running.check()
            yield
        except asyncio.CancelledError:
            may_return = grace_s > 0 and (known or reply.started) and not stream.finished
            gone = isinstance(running.reason, ClientDisconnected)
            slow = isinstance(running.reason, Cancelled | Overloaded)  # it does not read, so it is cut off
            stays = False
            if may_return and (slow or gone):
                stays = parking.hold(stream, grace_s)
            elif may_return and isinstance(running.reason, Unavailable):
                parking.leave(stream)
                stays = True
            if stays:
                owner.pop_all()
                if reply.started and not gone:
                    raise StreamLeft from None
            raise


async def send_events(
    streams: Sequence[GenerationStream],
    writer: ChunkWriter,
    reply: Reply,
    outcome: Outcome,
    *,
    header_wait_s: float,
    from_the_start: bool = True,
) -> None:
    """Sends all of it; `outcome` learns how it goes.

    Raises what ended a generation early; `reply.started` tells whether there is still a status to choose.

    from_the_start: the streams have their first frames; else the one that there is was joined later on.
    """
    for stream in streams:
        if from_the_start:
            await stream.wait_accepted()
        outcome.group = outcome.group or stream.group
        outcome.accepted = outcome.accepted or stream.accepted
    source = source_of(streams)
    try:
        data = await _send(source, writer, reply, outcome, header_wait_s)
    finally:
        await source.close()
    outcome.usages = [stream.usage for stream in streams]
    last_seq = streams[0].assembly.next_seq - 1
    asked = streams[0].request.session
    outcome.session = streams[0].session
    # who named no session gets no event about one
    told = outcome.session if asked is not None and asked.given else None
    last = writer.closing(outcome.usages, last_seq, told)
    await confirm(streams[0])
    await reply.part(data + last, more=False)


async def confirm(stream: GenerationStream) -> None:
    """Says that the caller of a turn is there, if it is."""
    if stream.request.confirms:
        await asyncio.sleep(0)  # a caller that has left is noticed here, and gets no confirmation
        await stream.confirm()


async def _send(
    source: Source, writer: ChunkWriter, reply: Reply, outcome: Outcome, header_wait_s: float
) -> bytes:
    """Sends all events but the last ones, which it returns: they go with the closing."""
    data = writer.opening()
    item: Piece | None = Piece(0, [])
    try:
        async with asyncio.timeout(header_wait_s):
            item = await source.next()
    except TimeoutError:
        pass  # a slow start is no failure: the headers go out, the text follows
    await reply.start([*_HEADERS, *outcome.headers()])
    while item is not None:
        if item.frames and not outcome.first_text_s:
            outcome.first_text_s = asyncio.get_running_loop().time()
        for frame in item.frames:
            data += writer.deltas(frame.deltas, item.prompt, frame.seq)
        if data and not source.ended:
            await reply.part(data)
            data = b""
        item = await source.next()
    return data
