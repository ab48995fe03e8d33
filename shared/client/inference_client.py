"""Runs generations over a bus: makes streams of requests, whose frames `FrameDispatcher` gives to them.

One subscription and one timer serve all requests of a client. A task starts only for a command: to publish
again, to ask for frames, to cancel.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Self

import msgspec

from shared import subjects
from shared.bus import Bus, Subscription
from shared.client.client_calls import ClientCalls
from shared.client.connected_bus import connected_bus
from shared.client.frame_dispatch import FrameDispatcher
from shared.client.generation.client_context import ClientContext
from shared.client.generation.command_executor import CommandExecutor
from shared.client.generation.commands import GenerationStats
from shared.client.generation.frames.unwanted import UnwantedFrames
from shared.client.generation.generation_state import GenerationState
from shared.client.generation.generation_stream import MAX_WHOLE_FRAMES, GenerationStream
from shared.client.generation.usage_reports import UsageListener
from shared.client.running_streams import RunningStreams
from shared.client.settings import ClientSettings
from shared.errors import Cancelled, InvalidRequest
from shared.gone_settings import describe_gone
from shared.messages import GenerateRequest, UsageRecord
from shared.telemetry.spans.request_trace import CURRENT_TRACE
from shared.telemetry.timelines import Timelines
from shared.telemetry.trace_context import inject


class InferenceClient(ClientCalls):
    """Generates text through the fleet. Call `start` first and `close` last; any number of requests at once.

    Attributes:
        bus: The connection to the fleet.
        caller: The service outside that this client speaks for, or None.
        wait_s: How long calls wait for a router or a group that is away.
        reply_to: The subject for frames.
        stats: What went wrong with frames so far, for metrics.
        unwanted: Requests whose frames come here though this client does not have them.
    """

    def __init__(
        self,
        bus: Bus,
        settings: ClientSettings | None = None,
        *,
        caller: subjects.OutsideService | None = None,
        stats: GenerationStats | None = None,
        timelines: Timelines | None = None,
    ) -> None:
        """Speaks over a bus.

        Args:
            bus: The connection to the fleet.
            settings: Time limits and bounds.
            caller: The name of a service outside on the broker (`BusSettings.caller`): its requests are its
                tenant's. None: one of our services, which name the tenant of each request, or a broker
                without accounts.
            stats: Counters to count in; None: new ones.
            timelines: Keeps when requests passed the parts of this client; None: not kept.
        """
        settings = settings or ClientSettings()
        inbox = bus.new_inbox()
        self.bus = bus
        self.reply_to = f"{inbox}.f"
        self.stats = stats or GenerationStats()
        self.unwanted = UnwantedFrames()
        self._settings = settings
        self._timelines = timelines or Timelines(0)
        self._inbox = inbox
        self.caller = caller
        self.wait_s = settings.wait_s
        self._context = ClientContext.make(settings, self.stats)
        self._executor = CommandExecutor(bus, settings, inbox, caller)
        self._streams = RunningStreams(bus, settings, self._executor, self.unwanted)
        self._dispatcher = FrameDispatcher(self._streams, self._executor, self._context)
        self._subscriptions: list[Subscription] = []
        self._loop = asyncio.get_running_loop()

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams.by_id)

    def report_usage(self, listener: UsageListener) -> None:
        """Calls the listener with the owner and the tokens of each generation; see `UsageReports`."""
        self._streams.usage.listener = listener

    def record_usage(self, put: Callable[[UsageRecord], None]) -> None:
        """Gives `put` what was seen of generations that end without a last frame; see `UsageReports`."""
        self._streams.usage.record = put

    async def start(self) -> None:
        """Subscribes to frames, and to losses of groups, which callers outside do not get."""
        self._subscriptions = [await self.bus.subscribe(f"{self._inbox}.>", self._dispatcher.on_frames)]
        if self.caller is None:
            losses = await self.bus.subscribe(subjects.GROUP_DOWN, self._dispatcher.on_group_down)
            self._subscriptions.append(losses)
        self._streams.start()

    async def close(self) -> None:
        """Cancels what runs and stops listening."""
        await self._streams.close()
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
        """Returns a generation whose tokens arrive as they are made.

        It starts with `await` or `async with`.

        Args:
            request: What to generate; its `reply_to` is set here.
            timeout_s: The deadline from now.
            headers: Travel with the request; the current trace context is added.
            whole: The reader is woken at the end only.

        Raises (when it starts):
            Unavailable: No broker.
            RequestTooLarge: The prompt does not fit into a message.
            Overloaded: Too many requests are open in this client.
            InvalidRequest: A request of that id is open.
        """
        request = msgspec.structs.replace(request, reply_to=self.reply_to)
        return self._stream(request, timeout_s, inject(headers), whole=whole)

    def open_streams(self, request_id: str, call_key: str = "") -> dict[str, GenerationStream]:
        """The open streams by request id: that of this id, or those of the key if one is given."""
        if not call_key:
            stream = self._streams.by_id.get(request_id)
            return {} if stream is None or stream.finished else {request_id: stream}
        return {
            name: stream
            for name, stream in self._streams.by_id.items()
            if stream.request.call_key == call_key and not stream.finished
        }

    def is_open(self, stream: GenerationStream) -> bool:
        """Whether the stream runs, and no later stream of this client has its request."""
        return self._streams.by_id.get(stream.request_id) is stream and not stream.finished

    def adopt(
        self,
        request: GenerateRequest,
        *,
        group: str,
        instance_id: str,
        first_seq: int,
        needed_seq: int,
        timeout_s: float,
    ) -> GenerationStream:
        """Takes over a generation that a group runs already, and that sends its frames here from now on.

        Args:
            request: What the group generates.
            group: The group.
            instance_id: Its instance.
            first_seq: Its first frame that the group has kept; frames from here on come first.
            needed_seq: Frames below that number were shown by another caller.
            timeout_s: The deadline from now.

        Raises:
            Cancelled: A stream of this client has a later attempt at the request. A stream with the same
                attempt or an earlier one ends with `Cancelled`.
        """
        known = self._streams.by_id.get(request.request_id)
        if known is not None:
            if known.state.attempts.number > request.attempt:  # another caller attached to it after this one
                raise Cancelled("another caller attached to the request", reason="attached_elsewhere")
            known.state.cancel(f"request {request.request_id} goes on elsewhere", reason="attached_elsewhere")
            self._streams.forget_stream(known)
            known.wake_reader()
        request = msgspec.structs.replace(request, reply_to=self.reply_to)
        stream = self._stream(request, timeout_s, inject(None), whole=False)
        stream.state.answer.set_max_ready(MAX_WHOLE_FRAMES)  # all kept frames come at once
        self._streams.adopt_stream(stream, stream.state.adopt(group, instance_id, first_seq, needed_seq))
        return stream

    def _stream(
        self, request: GenerateRequest, timeout_s: float, headers: Mapping[str, str], *, whole: bool
    ) -> GenerationStream:
        now = self._loop.time()
        state = GenerationState(
            request,
            self._context,
            now=now,
            deadline=now + timeout_s,
            max_ready=MAX_WHOLE_FRAMES if whole else self._settings.constants.max_buffered_frames,
        )
        trace = CURRENT_TRACE.get()
        return GenerationStream(
            self._streams,
            request,
            state,
            headers=headers,
            deadline=now + timeout_s,
            whole=whole,
            timeline=self._timelines.begin(request.request_id, request.attempt, traced=trace is not None),
            trace=None if trace is None else trace.add_stream(request.model),
        )

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str = "",
        *,
        tenant: str = "",
        name: str = "client",
        connect_wait_s: float = 10.0,
        settings: ClientSettings | None = None,
    ) -> AsyncIterator[Self]:
        """Connects to the fleet, and closes the connection at the end of the block.

        Args:
            url: The broker, with user and password where it has accounts; empty: `RYZ_NATS_URL`.
            tenant: The tenant of that user, if it has another name than the user.
            name: Names the connection in the broker.
            connect_wait_s: How long it tries to connect.
            settings: Time limits and bounds; None: those of the environment (`RYZ_CLIENT_...`).

        Raises:
            InvalidRequest: A setting is wrong, or the broker refuses user or password.
            Unavailable: No broker answered in that time.
        """
        if settings is None and (problem := describe_gone(ClientSettings.gone, os.environ)):
            raise InvalidRequest(problem)
        async with connected_bus(url, tenant, name=name, connect_wait_s=connect_wait_s) as (bus, caller):
            client = cls(bus, settings, caller=caller)
            await client.start()
            try:
                yield client
            finally:
                await client.close()
