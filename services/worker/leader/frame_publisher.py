"""Sends frames: all that are due for one reply subject go out as one message.

The part that makes a frame says how long it may wait for others; one task sends. Each frame is kept in the
retransmit buffer first, so a caller can ask again for what was lost while the broker was away.
"""

import asyncio
import math

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

    Attributes:
        buffer: Keeps the frames that were sent.
    """

    def __init__(self, context: LeaderContext, buffer: RetransmitBuffer) -> None:
        self.buffer = buffer
        self._context = context
        self._clock = context.clock
        self._buckets: dict[str, list[bytes]] = {}
        self._due: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf

    def send(self, generation: Generation, frame: AnyFrame, *, within_s: float = 0.0) -> None:
        """Keeps the frame of an open request for retransmission, and sends it within that time."""
        now = self._clock()
        self._put(generation.reply_to, self.buffer.add_frame(generation.key, frame, now), now, within_s)

    def send_untracked(self, reply_to: str, frame: AnyFrame) -> None:
        """Sends a frame that is not kept: a refusal, or one that is kept already."""
        self._put(reply_to, codec.encode(frame), self._clock(), 0.0)

    async def publish_due_frames(self) -> None:
        """Sends what is due, until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._send_due(self._clock())
                self._arm()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def flush_frames(self) -> None:
        """Sends everything now, due or not; used at the end, when `publish_due_frames` was cancelled."""
        await self._send_due(math.inf)

    def _put(self, reply_to: str, frame: bytes, now: float, within_s: float) -> None:
        bucket = self._buckets.get(reply_to)
        if bucket is None:
            self._buckets[reply_to] = [frame]
            due = self._due[reply_to] = now + within_s
        else:
            bucket.append(frame)
            due = self._due[reply_to] = min(self._due[reply_to], now + within_s)
        if due <= now:
            self._wake.set()
        elif due < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        """Sets the timer to the earliest due time, if any frame is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = min(self._due.values(), default=math.inf)
        if self._due:
            delay = max(0.0, self._armed_for - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake.set)

    async def _send_due(self, now: float) -> None:
        for reply_to in [subject for subject, due in self._due.items() if due <= now]:
            del self._due[reply_to]
            await self._send_batch(reply_to, self._buckets.pop(reply_to))

    async def _send_batch(self, reply_to: str, frames: list[bytes]) -> None:
        context = self._context
        data = codec.encode_batch(frames, context.group, context.instance_id)
        if len(data) > context.bus.max_payload and len(frames) > 1:
            middle = len(frames) // 2
            await self._send_batch(reply_to, frames[:middle])
            await self._send_batch(reply_to, frames[middle:])
            return
        try:
            await context.bus.publish(reply_to, data)
        except Unavailable:
            context.metrics.unsent_frames.inc(len(frames))
        except RyzError as error:  # a frame that is too large, or a reply subject that is none
            context.metrics.unsent_frames.inc(len(frames))
            log.error("frames cannot be sent", subject=reply_to, error=error.message)
