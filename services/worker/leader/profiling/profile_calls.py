"""The call that records a profile of this group, and the way of the recording to who asked."""

import asyncio
import time
import zlib

import structlog

from services.worker.leader.context import LeaderContext
from services.worker.leader.profiling.profiler import Profiler
from shared.bus.api import Message
from shared.codec import encode
from shared.errors import RyzError
from shared.host.boot_id import boot_id
from shared.messages import GroupRecording, ProfileAnswer, ProfilePart, ProfileQuery
from shared.messages.profiles import PART_BYTES

log = structlog.get_logger(__name__)
_LEVEL = 1  # of the compression, which runs beside the event loop
_ROOM = 1024  # of a message, for all but the data


class ProfileCalls:
    """Answers `ProfileQuery`; one recording at a time."""

    def __init__(self, context: LeaderContext, profiler: Profiler) -> None:
        self._context = context
        self._profiler = profiler
        self._host_id = boot_id()
        self._running: asyncio.Task[None] | None = None
        self._ends_at = 0.0

    async def profile(self, asked: ProfileQuery, message: Message) -> ProfileAnswer | None:
        """Reads the clock, and begins to record if that is asked; no answer for another group's query."""
        received_ns = time.monotonic_ns()
        if asked.group not in {None, self._context.group} or not message.reply:
            return None
        refused = ""
        if asked.seconds:
            refused = self._refusal()
            if not refused:
                self._ends_at = time.monotonic() + asked.seconds
                recording = self._record(asked, message.reply)
                self._running = asyncio.create_task(recording, name="profile")
        return ProfileAnswer(
            group=self._context.group,
            instance_id=self._context.instance_id,
            host_id=self._host_id,
            received_ns=received_ns,
            answered_ns=time.monotonic_ns(),
            refused=refused,
        )

    async def stop(self) -> None:
        """Ends a recording that runs; nothing is sent of it."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _refusal(self) -> str:
        if self._running is None or self._running.done():
            return ""
        left_s = max(0.0, self._ends_at - time.monotonic())
        when = f"ends in {left_s:.1f} s" if left_s else "is being sent"
        return f"group {self._context.group} records a profile already, which {when}; ask again after it"

    async def _record(self, asked: ProfileQuery, reply: str) -> None:
        log.info("a profile is recorded", group=self._context.group, seconds=asked.seconds)
        try:
            recording = await self._profiler.record(asked.seconds, asked.op_spans)
            await self._send(await asyncio.to_thread(_pack, recording), reply)
        except RyzError as error:
            log.warning("a profile was not sent", group=self._context.group, error=error.message)
        except Exception:
            log.exception("a profile failed", group=self._context.group)

    async def _send(self, packed: bytes, reply: str) -> None:
        bus = self._context.bus
        size = min(PART_BYTES, bus.max_payload - _ROOM)
        starts = range(0, len(packed), size)
        for number, start in enumerate(starts):
            part = ProfilePart(
                group=self._context.group,
                instance_id=self._context.instance_id,
                number=number,
                count=len(starts),
                data=packed[start : start + size],
            )
            await bus.publish(reply, encode(part))
            await bus.flush()  # so that frames of requests get between the parts


def _pack(recording: GroupRecording) -> bytes:
    return zlib.compress(encode(recording), _LEVEL)
