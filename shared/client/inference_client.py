"""Runs generations over a bus: publishes requests, takes frames, and does what `assembly.py` decides.

One subscription and one timer serve all requests of a client. A task is started only when something went
wrong (publish again, ask again, cancel).
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
import structlog

from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.client.generation.attempts import RetryBudget
from shared.client.generation.command_executor import Errands
from shared.client.generation.commands import NOTHING, AskResend, AssemblyStats, Command, Commands
from shared.client.generation.generation_state import Assembly
from shared.client.generation.generation_stream import MAX_WHOLE_FRAMES, GenerationStream
from shared.client.generation.results import Completion
from shared.client.generation.timer_wheel import Wheel
from shared.client.generation.unwanted_frames import Unwanted
from shared.client.settings import ClientSettings
from shared.codec import decode, encode
from shared.errors import Cancelled, InvalidRequest, Overloaded, RyzError, Unavailable
from shared.messages import Accepted, AnyFrame, Delivered, FrameBatch, GenerateRequest, GroupDown, Tokens
from shared.telemetry.repeated import RepeatedLog
from shared.telemetry.traces import inject

log = structlog.get_logger(__name__)
DOWN_S = 0.3  # for so long after the news of a lost group its last frames may still be on their way


class InferenceClient:
    """Generates text through the fleet. Call `start` first and `close` last; any number of requests at once.

    stats: what went wrong with frames so far, for metrics.
    """

    def __init__(
        self, bus: Bus, settings: ClientSettings | None = None, *, caller: subjects.Caller | None = None
    ) -> None:
        """Speaks over a bus.

        Args:
            bus: where the fleet is.
            settings: patience and bounds.
            caller: who a service outside is on the broker (`BusSettings.caller`): its requests are its
                tenant's. None: one of our services, which name the tenant of each request, or a broker
                without accounts.
        """
        self.stats = AssemblyStats()
        self._bus = bus
        self._settings = settings or ClientSettings()
        self.unwanted = Unwanted()
        self._repeated = RepeatedLog(log)
        self._open: dict[str, GenerationStream] = {}
        self._inbox = bus.new_inbox()
        self._caller = caller
        self._errands = Errands(bus, self._settings, self._inbox, caller)
        self._reply_to = f"{self._inbox}.f"
        self._subscriptions: list[Subscription] = []
        self._budget = RetryBudget(self._settings.retries_per_s)
        self._down: tuple[GroupDown, float] | None = None  # the latest, and when it came
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._wheel: Wheel[GenerationStream] = Wheel(self._settings.tick_s, self._due)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def bus(self) -> Bus:
        """What it talks over."""
        return self._bus

    @property
    def reply_to(self) -> str:
        """Where it takes frames."""
        return self._reply_to

    async def start(self) -> None:
        """Subscribes for answers, and for news of groups that are lost, which callers outside do not get."""
        self._subscriptions = [await self._bus.subscribe(f"{self._inbox}.>", self._arrived)]
        if self._caller is None:
            self._subscriptions.append(await self._bus.subscribe(subjects.GROUP_DOWN, self._group_down))

    async def close(self) -> None:
        """Cancels what runs and stops listening."""
        for stream in tuple(self._open.values()):
            await self.cancel(stream, "the client was closed")
        self._wheel.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.resend_timeout_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()

    def submit(
        self,
        request: GenerateRequest,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        whole: bool = False,
    ) -> GenerationStream:
        """A generation whose tokens arrive as they are made; it starts with `await` or `async with`.

        `timeout_s` is the request's deadline from now. `headers` travel with it; the current trace context is
        added. `request.reply_to` is set here. With `whole`, the reader is only woken at the end.

        Raises (when it starts):
            Unavailable: no broker.
            RequestTooLarge: the prompt does not fit into a message.
            Overloaded: too many requests are open in this client.
            InvalidRequest: a request of that id is open.
        """
        request = msgspec.structs.replace(request, reply_to=self._reply_to)
        return self._stream(request, timeout_s, inject(headers), whole=whole)

    def adopt(
        self,
        request: GenerateRequest,
        *,
        group: str,
        instance_id: str,
        first_seq: int,
        reach: int,
        timeout_s: float,
    ) -> GenerationStream:
        """A generation that a group runs already, and that sends its frames here from now on.

        Its frames from `first_seq` on come first, as the group has kept them; `reach`: below that number they
        were handed on by somebody else. A stream of the same request in this client ends with `Cancelled`.
        """
        known = self._open.get(request.request_id)
        if known is not None:
            if known.assembly.attempt > request.attempt:  # somebody here attached to it after this caller
                raise Cancelled("another caller attached to the request", reason="attached_elsewhere")
            known.assembly.cancel(
                f"request {request.request_id} goes on elsewhere", reason="attached_elsewhere"
            )
            self.forget(known)
            known.wake()
        request = msgspec.structs.replace(request, reply_to=self._reply_to)
        stream = self._stream(request, timeout_s, inject(None), whole=False)
        stream.assembly.max_ready = MAX_WHOLE_FRAMES  # all that there is comes at once
        self.unwanted.take(request.request_id)
        self._open[request.request_id] = stream
        self._settle(stream, stream.assembly.adopt(group, instance_id, first_seq, reach))
        self._schedule(stream)
        return stream

    def _stream(
        self, request: GenerateRequest, timeout_s: float, headers: Mapping[str, str], *, whole: bool
    ) -> GenerationStream:
        now = self._loop.time()
        assembly = Assembly(
            request.request_id,
            request.attempt,
            self._settings,
            now=now,
            deadline=now + timeout_s,
            max_ready=MAX_WHOLE_FRAMES if whole else self._settings.max_buffered_frames,
            stats=self.stats,
            num_choices=request.sampling.n,
            resume=request.resume,
            crashes=request.crashes,
            budget=self._budget,
        )
        return GenerationStream(
            self,
            request,
            assembly,
            data=encode(request),
            headers=headers,
            deadline=now + timeout_s,
            whole=whole,
        )

    async def complete(
        self, request: GenerateRequest, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Completion:
        """The whole answer; raises what `submit` and its iteration raise."""
        async with self.submit(request, timeout_s=timeout_s, headers=headers, whole=True) as stream:
            return await stream.completion()

    async def open(self, stream: GenerationStream) -> None:
        """Publishes a stream's request for the first time; called by the stream.

        One that was adopted runs, or has ended since: its reader is told how.
        """
        known = self._open.get(stream.request_id)
        if known is stream or stream.assembly.finished:
            return
        if known is not None:
            raise InvalidRequest(f"request {stream.request_id} is running already", param="request_id")
        if not self._subscriptions:
            raise Unavailable("the client is not started", reason="not_started")
        if len(self._open) >= self._settings.max_open_requests:
            raise Overloaded(f"{len(self._open)} requests are open in this client", retry_after_s=1.0)
        self._open[stream.request_id] = stream
        try:
            await self._errands.publish(stream, stream.data)
        except BaseException:
            del self._open[stream.request_id]
            raise
        self._schedule(stream)

    async def confirm(self, stream: GenerationStream) -> None:
        """Tells the group's leader that the caller of a turn gets the end of its answer."""
        session = stream.request.session
        if session is None or not stream.group:
            return
        told = Delivered(
            request_id=stream.request_id, tenant=stream.request.tenant, session_id=session.session_id
        )
        try:
            await self._bus.publish(subjects.delivered(stream.group), encode(told))
        except RyzError as error:
            log.debug("not told that an answer arrived", request_id=stream.request_id, error=error.message)

    def forget(self, stream: GenerationStream) -> None:
        """The caller has let go of it."""
        if self._open.get(stream.request_id) is stream:
            del self._open[stream.request_id]

    def leave(self, stream: GenerationStream) -> None:
        """Lets go of a stream that runs on, for a caller who is to attach to it."""
        self.unwanted.leave(stream.request_id)
        self.forget(stream)

    async def cancel(self, stream: GenerationStream, reason: str = "") -> None:
        """Ends a request on the caller's wish; called by the stream."""
        message = f"request {stream.request_id} was cancelled: {reason or 'the caller asked for it'}"
        commands = stream.assembly.cancel(message)
        stream.wake()
        self.forget(stream)  # before anything is awaited: the caller may itself be cancelled there
        for command in commands:
            await self._errand(stream, command)

    async def _arrived(self, message: Message) -> None:
        if message.no_responders:
            stream = self._open.get(message.subject.rpartition(".")[2])
            if stream is not None:
                self._settle(stream, stream.assembly.on_no_responders(self._loop.time()))
            return
        try:
            batch = decode(message.data, FrameBatch)
        except InvalidRequest as error:
            self.stats.ignored += 1
            self._repeated.warning("frames that cannot be read", subject=message.subject, error=error.message)
            return
        now = self._loop.time()
        touched: dict[GenerationStream, Commands] = {}
        for frame in batch.frames:
            stream = self._open.get(frame.request_id)
            if stream is None:
                self._unknown(frame, batch, now)
                continue
            commands = stream.assembly.on_frame(frame, batch.group, now, batch.instance_id)
            if isinstance(frame, Accepted):
                self._errands.tell_accepted(stream, now)
                commands += self._too_late(stream, now) if self._down is not None else NOTHING
            touched[stream] = touched[stream] + commands if stream in touched else commands
        for stream, commands in touched.items():
            self._settle(stream, commands)

    def _unknown(self, frame: AnyFrame, batch: FrameBatch, now: float) -> None:
        """A frame of a request that this client does not have; who makes more of them is told to stop.

        Frames come here only by this client's own subject, so another caller who has the request now has it
        as a later attempt, which the cancel does not reach.
        """
        self.stats.ignored += 1
        group, instance_id = batch.group, batch.instance_id
        if isinstance(frame, Accepted):
            group, instance_id = frame.group, frame.instance_id or instance_id
            unwanted = self.unwanted.may_cancel(frame.request_id)
        else:
            unwanted = isinstance(frame, Tokens) and self.unwanted.is_due(frame.request_id, now)
        if unwanted and group:
            telling = self._errands.tell_cancel(
                frame.request_id, group, "the caller is gone", frame.attempt, instance_id
            )
            self._spawn(telling)

    async def _group_down(self, message: Message) -> None:
        try:
            down = decode(message.data, GroupDown)
        except InvalidRequest as error:
            self.stats.ignored += 1
            self._repeated.warning("news that cannot be read", subject=message.subject, error=error.message)
            return
        now, lost = self._loop.time(), 0
        known = self._is_known(down, now)
        self._down = down, now
        for stream in tuple(self._open.values()):
            theirs = stream.assembly.group == down.group
            if not theirs and (known or stream.assembly.group):
                continue
            commands = stream.assembly.on_group_down(down.group, down.instance_id, down.reason, now)
            if commands:
                lost += theirs
                self._settle(stream, commands)
        if lost:
            log.warning("streams lost their group", group=down.group, reason=down.reason, streams=lost)

    def _is_known(self, down: GroupDown, now: float) -> bool:
        """Whether another router has just told the same."""
        if self._down is None:
            return False
        before, at = self._down
        same = (before.group, before.instance_id) == (down.group, down.instance_id)
        return same and now - at <= DOWN_S

    def _too_late(self, stream: GenerationStream, now: float) -> Commands:
        """A group took the request with its last breath: the news of its end came before."""
        assert self._down is not None
        down, at = self._down
        if now - at > DOWN_S:
            self._down = None
            return NOTHING
        if stream.assembly.offered_at >= at:  # the group is back
            return NOTHING
        return stream.assembly.on_group_down(down.group, down.instance_id, down.reason, now)

    def _settle(self, stream: GenerationStream, commands: Commands) -> None:
        """Starts what is to be done and wakes the reader."""
        for command in commands:
            self._spawn(self._errand(stream, command))
        stream.wake()
        if stream.assembly.finished:
            self.forget(stream)
        elif stream.assembly.has_gap or not stream.assembly.group:
            self._schedule(stream)

    def _schedule(self, stream: GenerationStream) -> None:
        """Sees to it that the timer comes to the stream in time; what it had before may come too late."""
        due = stream.assembly.due
        if due < stream.scheduled:
            stream.scheduled = due
            self._wheel.add(stream, due)

    def _due(self, stream: GenerationStream, now: float) -> None:
        if now < stream.scheduled or stream.assembly.finished:
            return  # an entry that an earlier one replaced
        stream.scheduled = math.inf
        self._settle(stream, stream.assembly.tick(now, connected=self._bus.connected))
        if not stream.assembly.finished:
            self._schedule(stream)

    async def _errand(self, stream: GenerationStream, command: Command) -> None:
        commands = await self._errands.carry_out(stream, command)
        asked = isinstance(command, AskResend)  # frames may have come with the answer
        if commands or asked:
            self._settle(stream, commands)
        if asked and not stream.assembly.finished:
            self._schedule(stream)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
