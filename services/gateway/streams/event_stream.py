"""Sends an answer as server-sent events while its text arrives.

The headers wait for the first text, within a bound, so that a refusal is an HTTP status and not an event. All
text that is ready goes out in one write.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType

from services.gateway.admission.disconnects import ClientDisconnected, StreamLeft
from services.gateway.admission.refusals import Headers
from services.gateway.answering.detached_streams import DetachedStreams
from services.gateway.answering.frame_sources import FrameSource, PromptFrames, frame_source
from services.gateway.answering.running_call import RunningRequest
from services.gateway.http.reply import CallOutcome, Reply
from services.gateway.http.serving_route import HttpExchange
from services.gateway.streams.event_writer import EventWriter
from shared.client import GenerationStream
from shared.errors import Cancelled, Overloaded, Unavailable

PING_S = 10.0  # between two pings while no text comes
STREAM_HEADER = b"x-stream-id"
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class StreamWithGrace:
    """Runs a stream inside a block; then cancels it, or parks it if its client may return.

    Leaving the block raises `StreamLeft` in place of the error that ended the request, if the stream goes on
    and its client is still connected: the gateway stops, or the client did not read.

    Args:
        stream: Is entered here.
        detached: Parks the stream.
        running: The request that the stream answers.
        grace_s: Seconds for which the stream may go on without its client.
        known: The client knows the id of the stream before the answer begins.
    """

    __slots__ = ("_detached", "_grace_s", "_known", "_running", "_stream")

    def __init__(
        self,
        stream: GenerationStream,
        detached: DetachedStreams,
        running: RunningRequest,
        grace_s: float,
        *,
        known: bool = False,
    ) -> None:
        self._stream = stream
        self._detached = detached
        self._running = running
        self._grace_s = grace_s
        self._known = known

    async def __aenter__(self) -> None:
        await self._stream.__aenter__()
        self._running.streams.append(self._stream)
        try:
            self._running.check_running()
        except asyncio.CancelledError as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not (isinstance(error, asyncio.CancelledError) and self._stays()):
            await self._stream.__aexit__(kind, error, trace)
        elif self._running.reply.started and not isinstance(self._running.reason, ClientDisconnected):
            raise StreamLeft from None

    def _stays(self) -> bool:
        """Parks or leaves the stream if it may go on after its request; returns whether it does."""
        running, reason = self._running, self._running.reason
        may_return = self._grace_s > 0 and (self._known or running.reply.started)
        if not may_return or self._stream.finished:
            return False
        # the second and the third cut off what was not read
        if isinstance(reason, ClientDisconnected | Cancelled | Overloaded):
            return self._detached.park_stream(self._stream, self._grace_s)
        if isinstance(reason, Unavailable):
            self._detached.leave_stream(self._stream)
            return True
        return False


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
            if frame.prompt is not None:
                data += writer.begin(frame.prompt)
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
