"""Hands arriving frames to the streams of one client, and reports the losses of groups to them."""

import asyncio
from dataclasses import dataclass

import structlog

from shared.bus import Message
from shared.client.generation.client_context import LAST_FRAMES_S, ClientContext
from shared.client.generation.command_executor import CommandExecutor
from shared.client.generation.commands import NOTHING, Commands
from shared.client.generation.generation_state import GenerationState
from shared.client.generation.generation_stream import GenerationStream
from shared.client.generation.request_lifecycle import GenerationPhase
from shared.client.running_streams import RunningStreams
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import Accepted, Done, Failed, FrameBatch, GroupDown
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LatestLoss:
    """A `GroupDown` and when it came. Frames that the group sent before its loss may still arrive."""

    down: GroupDown
    at: float

    def is_repeated_by(self, down: GroupDown, now: float) -> bool:
        """Whether `down` is the same report from another router."""
        same = (self.down.group, self.down.instance_id) == (down.group, down.instance_id)
        return same and not self.is_over(now)

    def is_over(self, now: float) -> bool:
        """Whether no frames of the group are expected any more."""
        return now - self.at > LAST_FRAMES_S

    def on_accepted(self, state: GenerationState, now: float) -> Commands:
        """A request was accepted; if the lost group did so before it was lost, the request has lost it.

        A request that was published after the report was accepted by a group that is back.
        """
        if state.offered_at >= self.at:
            return NOTHING
        return state.on_group_down(self.down.group, self.down.instance_id, self.down.reason, now)


class FrameDispatcher:
    """The handlers of one client's subscriptions."""

    def __init__(self, streams: RunningStreams, executor: CommandExecutor, context: ClientContext) -> None:
        self._streams = streams
        self._executor = executor
        self._heard, self._stats = context.heard, context.stats
        self._latest_loss: LatestLoss | None = None
        self._repeated = RepeatedLog(log)
        self._loop = asyncio.get_running_loop()

    def on_frames(self, message: Message) -> None:
        """Handles a batch of frames, or the broker's report that no router listens."""
        if message.no_responders:
            stream = self._streams.by_id.get(message.subject.rpartition(".")[2])
            if stream is not None:
                self._streams.settle(stream, stream.state.on_no_responders(self._loop.time()))
            return
        try:
            batch = decode(message.data, FrameBatch)
        except InvalidRequest as error:
            self._stats.ignored += 1
            self._repeated.warning("frames that cannot be read", subject=message.subject, error=error.message)
            return
        now = self._loop.time()
        self._heard.note(batch.instance_id, now)
        touched: dict[GenerationStream, Commands] = {}
        for frame in batch.frames:
            stream = self._streams.by_id.get(frame.request_id)
            if stream is None:
                self._stats.ignored += 1
                self._streams.take_unknown_frame(frame, batch, now)
                continue
            commands = stream.state.on_frame(frame, batch.group, now, batch.instance_id)
            if isinstance(frame, Accepted):
                stream.timeline.mark("accepted", {"attempt": frame.attempt, "group": frame.group})
                self._executor.log_accepted(stream, now)
                if self._latest_loss is not None:
                    commands += self._on_accepted_after_loss(self._latest_loss, stream, now)
            elif isinstance(frame, Done | Failed):
                if batch.group or not _goes_on(stream, frame.attempt):
                    stream.timeline.mark("last frame", {"attempt": frame.attempt})
            elif stream.state.next_seq <= 2:
                stream.timeline.mark("first frame", {"attempt": frame.attempt})
            touched[stream] = touched[stream] + commands if stream in touched else commands
        for stream, commands in touched.items():
            self._streams.settle(stream, commands)

    def _on_accepted_after_loss(self, loss: LatestLoss, stream: GenerationStream, now: float) -> Commands:
        if loss.is_over(now):
            self._latest_loss = None
            return NOTHING
        return loss.on_accepted(stream.state, now)

    async def on_group_down(self, message: Message) -> None:
        """Handles the loss of a group: its streams go on elsewhere."""
        try:
            down = decode(message.data, GroupDown)
        except InvalidRequest as error:
            self._stats.ignored += 1
            self._repeated.warning("news that cannot be read", subject=message.subject, error=error.message)
            return
        now, num_lost = self._loop.time(), 0
        repeated = self._latest_loss is not None and self._latest_loss.is_repeated_by(down, now)
        self._latest_loss = LatestLoss(down, now)
        for stream in tuple(self._streams.by_id.values()):
            theirs = stream.group == down.group
            if not theirs and (repeated or stream.state.phase is GenerationPhase.RUNNING):
                continue
            commands = stream.state.on_group_down(down.group, down.instance_id, down.reason, now)
            if commands:
                num_lost += theirs
                self._streams.settle(stream, commands)
        if num_lost:
            log.warning("streams lost their group", group=down.group, reason=down.reason, streams=num_lost)


def _goes_on(stream: GenerationStream, attempt: int) -> bool:
    """Whether a router has refused this attempt, and it waits to be offered again."""
    state = stream.state
    return not state.finished and state.attempts.number == attempt
