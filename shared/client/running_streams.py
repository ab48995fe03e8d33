"""Drives the open streams of one client: starts their commands, wakes readers, and keeps time limits.

`TimerWheel`: one timer for all requests of a client.

Each entry stands in the bucket of the tick in which it is due, and is asked for its next due time when its
bucket comes up. An entry that was replaced, or whose request has ended, costs nothing until then.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from shared.bus import Bus
from shared.client.generation.command_executor import CommandExecutor
from shared.client.generation.commands import AskResend, Command, Commands
from shared.client.generation.frames.unwanted import UnwantedFrames
from shared.client.generation.generation_stream import GenerationStream
from shared.client.generation.request_lifecycle import GenerationPhase
from shared.client.generation.usage_reports import UsageReports
from shared.client.settings import ClientSettings
from shared.errors import InvalidRequest, Overloaded, RyzError, Unavailable
from shared.messages import AnyFrame, FrameBatch


class Timed(Protocol):
    """An entry of a wheel."""

    timer_due: float
    """When its bucket comes up, on the loop's clock; infinity: it stands in none. The wheel sets it."""


T = TypeVar("T", bound=Timed)


class TimerWheel(Generic[T]):
    """Calls `fire(entry, now)` when an entry is due, `tick_s` late at most."""

    def __init__(self, tick_s: float, fire: Callable[[T, float], None]) -> None:
        self._tick_s = tick_s
        self._fire = fire
        self._buckets: dict[int, list[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self._loop = asyncio.get_running_loop()

    def schedule(self, entry: T, due: float) -> None:
        """Have the entry fire at `due`, a time of the running loop's clock, unless it fires before."""
        if due >= entry.timer_due:
            return
        entry.timer_due = due
        number = int(due / self._tick_s) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = [entry]
        else:
            bucket.append(entry)
        if self._timer is None or number < self._next:
            self._arm(number)

    def stop(self) -> None:
        """Forget all entries."""
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = number
        self._timer = self._loop.call_at(number * self._tick_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        last = int(now / self._tick_s + 1e-6)
        for number in sorted(number for number in self._buckets if number <= last):
            for entry in self._buckets.pop(number):
                if entry.timer_due / self._tick_s >= number:
                    continue  # it has fired, and may fire again later
                entry.timer_due = math.inf
                self._fire(entry, now)
        self._arm_next()

    def _arm_next(self) -> None:
        # not in `_tick`, where mypy takes the timer for None to the end, and compiled code insists on it
        if self._buckets and self._timer is None:
            self._arm(min(self._buckets))


class RunningStreams:
    """The streams of one client that have not ended; the `StreamOwner` of each of them.

    Attributes:
        by_id: The open streams by request id.
        usage: Reports the tokens of streams that have ended.
    """

    def __init__(
        self, bus: Bus, settings: ClientSettings, executor: CommandExecutor, unwanted: UnwantedFrames
    ) -> None:
        self.by_id: dict[str, GenerationStream] = {}
        self.usage = UsageReports()
        self._bus = bus
        self._settings = settings
        self._executor = executor
        self._unwanted = unwanted
        self._started = False
        self._wheel: TimerWheel[GenerationStream] = TimerWheel(settings.constants.tick_s, self._on_timer)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Streams may be opened from here on."""
        self._started = True

    async def close(self) -> None:
        """Cancels all streams, and ends the tasks."""
        for stream in tuple(self.by_id.values()):
            await self.cancel_stream(stream, "the client was closed")
        self._wheel.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.constants.resend_timeout_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._started = False

    def adopt_stream(self, stream: GenerationStream, commands: Commands) -> None:
        """Adds a stream that a group runs already."""
        self.by_id[stream.request_id] = stream
        self._unwanted.take_request(stream.request_id)
        self.usage.drop_request(stream.request_id)
        self.settle(stream, commands)
        self._wheel.schedule(stream, stream.state.due)

    async def open_stream(self, stream: GenerationStream) -> None:
        """Publishes a stream's request for the first time; see `InferenceClient.submit`.

        A stream that was adopted runs already, or has ended; its reader gets the outcome.
        """
        known = self.by_id.get(stream.request_id)
        if known is stream or stream.finished:
            return
        if known is not None:
            raise InvalidRequest(f"request {stream.request_id} is running already", param="request_id")
        if not self._started:
            raise Unavailable("the client is not started", reason="not_started")
        if len(self.by_id) >= self._settings.constants.max_open_requests:
            raise Overloaded(f"{len(self.by_id)} requests are open in this client", retry_after_s=1.0)
        self.by_id[stream.request_id] = stream
        try:
            await self._executor.publish_request(stream, stream.data)
        except Unavailable as away:
            if not stream.state.wait_for_broker(away, self._loop.time()):
                self.forget_stream(stream)
                raise
        except RyzError as error:
            del self.by_id[stream.request_id]
            stream.state.observed.end(self._loop.time(), error, stream.usage)
            raise
        except BaseException:
            del self.by_id[stream.request_id]
            raise
        self._wheel.schedule(stream, stream.state.due)

    async def confirm_delivery(self, stream: GenerationStream) -> None:
        """Confirms to the group's leader that the caller of a turn gets the end of its answer."""
        await self._executor.confirm_delivery(stream)

    def forget_stream(self, stream: GenerationStream) -> None:
        """Forgets a stream whose caller has left or has read everything."""
        if self.by_id.get(stream.request_id) is stream:
            del self.by_id[stream.request_id]
            if stream.finished:
                stream.state.observed.end(self._loop.time(), stream.error, stream.usage)
                self.usage.end_stream(stream)
            if stream.trace is not None:
                stream.trace.end(stream.timeline, stream.error.code if stream.error is not None else "")

    def leave_stream(self, stream: GenerationStream) -> None:
        """Forgets a stream that runs on, for a caller that will attach to it."""
        self._unwanted.leave_request(stream.request_id)
        self.forget_stream(stream)

    async def cancel_stream(self, stream: GenerationStream, reason: str = "") -> None:
        """Ends a request because the caller asked for it."""
        message = f"request {stream.request_id} was cancelled: {reason or 'the caller asked for it'}"
        commands = stream.state.cancel(message)
        stream.wake_reader()
        self.forget_stream(stream)  # before anything is awaited: the caller may itself be cancelled there
        for command in commands:
            await self._execute(stream, command)

    def settle(self, stream: GenerationStream, commands: Commands) -> None:
        """Starts the commands, wakes the reader, and sets the timer."""
        for command in commands:
            self.spawn(self._execute(stream, command))
        stream.wake_reader()
        state = stream.state
        if state.finished:
            self.forget_stream(stream)
        elif state.phase is not GenerationPhase.RUNNING or state.num_held:
            self._wheel.schedule(stream, state.due)  # what was scheduled before may come too late

    def take_unknown_frame(self, frame: AnyFrame, batch: FrameBatch, now: float) -> None:
        """Takes a frame of a request that is not open here; its leader may get a cancel."""
        self.usage.take_late_frame(frame)
        cancel = self._unwanted.answer_frame(frame, batch, now)
        if cancel is not None:
            self.spawn(self._executor.cancel_unknown(frame.request_id, cancel))

    def _on_timer(self, stream: GenerationStream, now: float) -> None:
        state = stream.state
        if state.finished:
            return
        self.settle(stream, state.tick(now, connected=self._bus.connected))
        if not state.finished:
            self._wheel.schedule(stream, state.due)

    async def _execute(self, stream: GenerationStream, command: Command) -> None:
        commands = await self._executor.carry_out(stream, command)
        asked = isinstance(command, AskResend)  # frames may have come with the answer
        if commands or asked:
            self.settle(stream, commands)
        if asked and not stream.finished:
            self._wheel.schedule(stream, stream.state.due)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something in a task that ends with the client."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
