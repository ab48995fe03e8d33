"""Sends frames: all that are due for one reply subject go out as one message.

The part that makes a frame says how long it may wait for others. Frames that are due are sent in the next
turn of the event loop, before which no byte could leave anyway, however many steps have made them. Each frame
is kept in the retransmit buffer first, so a caller can ask again for what was lost while the broker was away.
"""

import asyncio
import math
from collections.abc import Callable, Iterator

import structlog

from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.leader.context import LeaderContext
from shared import codec
from shared.errors import RyzError, Unavailable
from shared.messages import AnyFrame

log = structlog.get_logger(__name__)


class FramePublisher:
    """One bucket of frames per reply subject; frames of a subject keep their order.

    Args:
        send_first: Publishes what has to be on the connection before frames are.

    Attributes:
        buffer: Keeps the frames that were sent.
    """

    def __init__(
        self,
        context: LeaderContext,
        buffer: RetransmitBuffer,
        send_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.buffer = buffer
        self._send_first = send_first
        self._context = context
        self._clock = context.clock
        self._buckets: dict[str, list[bytes]] = {}
        self._due: dict[str, float] = {}
        self._soon: asyncio.Handle | None = None  # set while frames are due that were not sent yet
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._refused = asyncio.Event()  # set while the broker is slow; one task sends then, and waits for it

    def send(self, generation: Generation, frame: AnyFrame, *, within_s: float = 0.0) -> None:
        """Keeps the frame of an open request for retransmission, and sends it within that time."""
        if generation.on_end is not None:
            return
        now = self._clock()
        self._put(generation.reply_to, self.buffer.add_frame(generation.key, frame, now), now, within_s)

    def send_untracked(self, reply_to: str, frame: AnyFrame) -> None:
        """Sends a frame that is not kept: a refusal, or one that is kept already."""
        self._put(reply_to, codec.encode(frame), self._clock(), 0.0)

    def send_due(self) -> None:
        """Sends what is due now; what a slow broker does not take is left to `send_refused_frames`."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if not self._due or self._refused.is_set():
            return
        self._send_first()
        now = self._clock()
        for reply_to in [subject for subject, due in self._due.items() if due <= now]:
            frames = self._buckets[reply_to]
            sent = self._send_now(reply_to, frames)
            if sent < len(frames):
                del frames[:sent]
                self._refused.set()
                return
            del self._due[reply_to], self._buckets[reply_to]
        self._arm()

    async def send_refused_frames(self) -> None:
        """Sends what a slow broker did not take at once, in order, until cancelled."""
        try:
            while True:
                await self._refused.wait()
                await self._send_waiting(self._clock())
                self._refused.clear()
                self.send_due()
                self._arm()
        finally:
            for handle in (self._timer, self._soon):
                if handle is not None:
                    handle.cancel()

    async def flush_frames(self) -> None:
        """Sends everything now, due or not; used at the end, when `send_refused_frames` was cancelled."""
        await self._send_waiting(math.inf)

    def _put(self, reply_to: str, frame: bytes, now: float, within_s: float) -> None:
        bucket = self._buckets.get(reply_to)
        if bucket is None:
            self._buckets[reply_to] = [frame]
            due = self._due[reply_to] = now + within_s
        else:
            bucket.append(frame)
            due = self._due[reply_to] = min(self._due[reply_to], now + within_s)
        if due > now:
            if due < self._armed_for:
                self._arm()
        elif self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.send_due)

    def _arm(self) -> None:
        """Sets the timer to the earliest due time, if any frame is left."""
        earliest = min(self._due.values(), default=math.inf)
        if earliest == self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = earliest
        if self._due:
            delay = max(0.0, earliest - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._end_timer)

    def _end_timer(self) -> None:
        self._timer, self._armed_for = None, math.inf
        self.send_due()

    def _send_now(self, reply_to: str, frames: list[bytes]) -> int:
        """Sends frames without waiting; returns how many of them the broker took, or never will."""
        done = 0
        for number, data in self._messages(frames):
            try:
                if not self._context.bus.publish_now(reply_to, data):
                    break
            except RyzError as error:
                self._count_unsent(reply_to, number, error)
            done += number
        return done

    async def _send_waiting(self, now: float) -> None:
        """Sends what is due at that time, and waits until the broker takes it."""
        self._send_first()
        for reply_to in [subject for subject, due in self._due.items() if due <= now]:
            del self._due[reply_to]
            for number, data in self._messages(self._buckets.pop(reply_to)):
                try:
                    await self._context.bus.publish(reply_to, data)
                except RyzError as error:
                    self._count_unsent(reply_to, number, error)

    def _messages(self, frames: list[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yields messages that are small enough, each with the number of its frames."""
        context = self._context
        data = codec.encode_batch(frames, context.group, context.instance_id)
        if len(data) > context.bus.max_payload and len(frames) > 1:
            middle = len(frames) // 2
            yield from self._messages(frames[:middle])
            yield from self._messages(frames[middle:])
        else:
            yield len(frames), data

    def _count_unsent(self, reply_to: str, number: int, error: RyzError) -> None:
        self._context.metrics.unsent_frames.inc(number)
        if not isinstance(error, Unavailable):  # a frame that is too large, or a reply subject that is none
            log.error("frames cannot be sent", subject=reply_to, error=error.message)
