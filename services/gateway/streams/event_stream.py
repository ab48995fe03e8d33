"""Sends an answer as server-sent events while its text arrives.

The headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from services.gateway.http.disconnects import ClientDisconnected, StreamLeft
from services.gateway.http.errors import Headers
from services.gateway.http.reply import CallOutcome, Reply
from services.gateway.http.running_request import RunningRequest
from services.gateway.http.serving_route import HttpExchange
from services.gateway.streams.detached_streams import DetachedStreams
from services.gateway.streams.event_writer import EventWriter
from services.gateway.streams.frame_sources import FrameSource, PromptFrames, frame_source
from shared.client import GenerationStream
from shared.errors import Cancelled, Overloaded, Unavailable

PING_S = 10.0  # between two pings while no text comes
STREAM_HEADER = b"x-stream-id"
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


@asynccontextmanager
async def stream_with_grace(
    stream: GenerationStream,
    detached: DetachedStreams,
    running: RunningRequest,
    grace_s: float,
    *,
    known: bool = False,
) -> AsyncIterator[None]:
    """Runs a stream inside the block; then cancels it, or parks it if its client may return.

    Args:
        stream: Is entered here.
        detached: Parks the stream.
        running: The request that the stream answers.
        grace_s: Seconds for which the stream may go on without its client.
        known: The client knows the id of the stream before the answer begins.

    Raises:
        StreamLeft: In place of the error that ended the request, if the stream goes on and its client is
            still connected: the gateway stops, or the client did not read.
    """
    async with AsyncExitStack() as owner:
        await owner.enter_async_context(stream)
        running.streams.append(stream)
        try:
            running.check_running()
            yield
        except asyncio.CancelledError:
            started = running.reply.started
            may_return = grace_s > 0 and (known or started) and not stream.finished
            gone = isinstance(running.reason, ClientDisconnected)
            slow = isinstance(running.reason, Cancelled | Overloaded)  # cut off, since it did not read
            stays = False
            if may_return and (slow or gone):
                stays = detached.park_stream(stream, grace_s)
            elif may_return and isinstance(running.reason, Unavailable):
                detached.leave_stream(stream)
                stays = True
            if stays:
                owner.pop_all()
                if started and not gone:
                    raise StreamLeft from None
            raise


async def send_events(
    streams: Sequence[GenerationStream],
    writer: EventWriter,
    exchange: HttpExchange,
    *,
    header_wait_s: float,
    from_the_start: bool = True,
) -> None:
    """Sends all events of a call.

    Args:
        streams: Its generations, which run already.
        writer: Makes the events.
        exchange: Its reply gets them, and its outcome is filled in on the way. After an error
            `reply.started` tells whether a status can still be sent.
        header_wait_s: Seconds that the headers wait for the first text.
        from_the_start: The streams begin with their first frames; else the only one was joined later.

    Raises:
        RyzError: A generation failed.
    """
    reply, outcome = exchange.reply, exchange.outcome
    exchange.write_failure = writer.failure
    for stream in streams:
        if from_the_start:
            await stream.wait_accepted()
        outcome.group = outcome.group or stream.group
        outcome.accepted = outcome.accepted or stream.accepted
    source = frame_source(streams)
    try:
        data = await _send(source, writer, reply, outcome, header_wait_s)
    finally:
        await source.close()
    outcome.usages = [stream.usage for stream in streams]
    last_seq = streams[0].next_seq - 1
    asked = streams[0].request.session
    outcome.session = streams[0].session
    # a caller that named no session gets no event about one
    told = outcome.session if asked is not None and asked.given else None
    last = writer.closing(outcome.usages, last_seq, told)
    await confirm_turn(streams[0])
    await reply.send_part(data + last, more=False)


async def confirm_turn(stream: GenerationStream) -> None:
    """Confirms a turn that waits for it, if the caller is still connected."""
    if stream.request.confirms:
        await asyncio.sleep(0)  # here the request ends if the caller has left
        await stream.confirm()


async def _send(
    source: FrameSource, writer: EventWriter, reply: Reply, outcome: CallOutcome, header_wait_s: float
) -> bytes:
    """Sends all events but the last ones, which it returns: they go out with the closing."""
    data = writer.opening(outcome.accepted)
    item: PromptFrames | None = PromptFrames(0, [])
    try:
        async with asyncio.timeout(header_wait_s):
            item = await source.next_frames()
    except TimeoutError:
        pass  # a slow start is no failure: the headers go out, the text follows
    await reply.start_stream([*_HEADERS, *outcome.headers()])
    while item is not None:
        if item.frames and not outcome.first_text_s:
            outcome.first_text_s = asyncio.get_running_loop().time()
        for frame in item.frames:
            data += writer.deltas(frame.deltas, item.prompt, frame.seq)
        if data and not source.ended:
            await reply.send_part(data)
            data = b""
        item = await _next_frames(source, writer, reply)
    return data


async def _next_frames(source: FrameSource, writer: EventWriter, reply: Reply) -> PromptFrames | None:
    """The next frames; while none come, pings are sent if the format has them."""
    ping = writer.ping()
    while ping:
        try:
            async with asyncio.timeout(PING_S):
                return await source.next_frames()
        except TimeoutError:
            await reply.send_part(ping)
    return await source.next_frames()
