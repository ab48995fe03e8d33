"""One running generation, as its caller sees it."""

import asyncio
import math
from collections.abc import AsyncIterator, Generator, Mapping
from types import TracebackType
from typing import Protocol, Self

from shared.client.generation.attempts import Interruption
from shared.client.generation.generation_state import GenerationState
from shared.client.generation.results import Completion, gather
from shared.codec import encode
from shared.errors import RyzError
from shared.messages import Accepted, Delta, GenerateRequest, SessionOutcome, Tokens, Usage
from shared.messages.generate import Resumed
from shared.telemetry.spans.request_trace import StreamTrace
from shared.telemetry.timelines import UNRECORDED, RequestTimeline

MAX_WHOLE_FRAMES = 1_000_000  # of an answer that is wanted as a whole; the leader's limits are tighter


class StreamOwner(Protocol):
    """The part of a client that a stream belongs to, as far as the stream needs it."""

    async def open_stream(self, stream: "GenerationStream") -> None:
        """Publish the request for the first time."""
        ...

    async def cancel_stream(self, stream: "GenerationStream", reason: str = "") -> None:
        """End the request because the caller asked for it."""
        ...

    async def confirm_delivery(self, stream: "GenerationStream") -> None:
        """Confirm to the leader that the caller gets the end of the answer."""
        ...

    def forget_stream(self, stream: "GenerationStream") -> None:
        """Forget the stream."""
        ...

    def leave_stream(self, stream: "GenerationStream") -> None:
        """Forget the stream, which runs on."""
        ...


class GenerationStream:
    """The result of `InferenceClient.submit`: an async context manager, and an iterator of lists of `Delta`.

    Leaving the block before the end cancels the generation. Iterating raises the error that ended it, one of
    `shared.errors`. `usage` is complete after the last delta. One reader at a time.

    Attributes:
        request: What is generated.
        state: The state machine of the request; its client feeds it.
        data: The encoded request, as it is published first.
        headers: Headers of the published message.
        deadline: On the loop's clock, in seconds.
        timeline: When the request passed the parts of this client.
        trace: Of a request that is recorded, else None.
        timer_due: When the client's `TimerWheel` comes to the stream; the wheel sets it.
    """

    __slots__ = (
        "_owner",
        "_waiter",
        "_whole",
        "data",
        "deadline",
        "headers",
        "request",
        "state",
        "timeline",
        "timer_due",
        "trace",
    )

    def __init__(
        self,
        owner: StreamOwner,
        request: GenerateRequest,
        state: GenerationState,
        *,
        headers: Mapping[str, str],
        deadline: float,
        whole: bool,
        timeline: RequestTimeline = UNRECORDED,
        trace: StreamTrace | None = None,
    ) -> None:
        self.request = request
        self.timeline = timeline
        self.trace = trace
        self.state = state
        self.data = encode(request)
        self.headers = headers
        self.deadline = deadline
        self.timer_due = math.inf
        self._owner = owner
        self._whole = whole
        self._waiter: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def accepted(self) -> Accepted | None:
        """The leader's `Accepted` frame, once it came; see `wait_accepted`."""
        return self.state.answer.accepted

    @property
    def group(self) -> str:
        """The group that runs it; empty until one has it."""
        return self.state.group

    @property
    def session_id(self) -> str:
        """The session's id as the leader says it, else the request's; empty without a session."""
        accepted = self.accepted
        if accepted is not None and accepted.session_id:
            return accepted.session_id
        return self.request.session.session_id if self.request.session else ""

    @property
    def usage(self) -> Usage:
        """Token counts; zeros until the end."""
        return self.state.answer.usage

    @property
    def session(self) -> SessionOutcome | None:
        """The outcome of the turn once the answer has ended; None if the request has no session."""
        return self.state.answer.session

    @property
    def resumed(self) -> Resumed:
        """Once the answer has ended: `text` if several engines wrote it; see `Done`."""
        return self.state.answer.resumed

    @property
    def waits_for(self) -> str:
        """What a request waits for whose model is to be loaded, as the routers say it; empty: for nothing."""
        lifecycle = self.state.lifecycle
        refusal = lifecycle.attempts.refusal
        if refusal is None or not lifecycle.wait.wakes:
            return ""
        return refusal.message.partition(";")[0]  # what follows is advice to a caller that is refused

    @property
    def unread(self) -> int:
        """The approximate memory of the frames that were not read, in bytes."""
        return self.state.answer.unread_bytes

    @property
    def behind(self) -> float:
        """How far the reader is behind; above 1 the request is cancelled."""
        return self.state.answer.behind

    @property
    def finished(self) -> bool:
        """The end has arrived, read or not."""
        return self.state.finished

    @property
    def error(self) -> RyzError | None:
        """What ended it early, once it has arrived."""
        return self.state.error

    @property
    def next_seq(self) -> int:
        """The number of the next frame that is to arrive."""
        return self.state.next_seq

    @property
    def interruptions(self) -> list[Interruption]:
        """The groups that were lost in mid-stream so far."""
        return self.state.attempts.interruptions

    async def wait_accepted(self) -> Accepted:
        """Waits until a group has the request; raises what ended it instead."""
        while (accepted := self.accepted) is None:
            if self.error is not None:
                raise self.error
            await self._wait()
        return accepted

    async def next_frame(self) -> Tokens | None:
        """The next frame; None after the last. Raises what ended the generation instead.

        Nothing is lost when it is cancelled while it waits.
        """
        state, answer = self.state, self.state.answer
        while not answer.ready:
            if state.error is not None:
                raise state.error
            if state.finished:
                return None
            await self._wait()
        return answer.take_frame()

    async def next_frames(self, limit: int) -> list[Tokens]:
        """The frames that are there, `limit` at most; waits while there is none. Empty after the last."""
        frame = await self.next_frame()
        if frame is None:
            return []
        frames, answer = [frame], self.state.answer
        while answer.ready and len(frames) < limit:
            frames.append(answer.take_frame())
        return frames

    @property
    def exhausted(self) -> bool:
        """It has ended well, and all of its frames were read."""
        return self.finished and self.error is None and not self.state.answer.ready

    def frames(self) -> AsyncIterator[Tokens]:
        """Iterates over whole frames, numbers included; raises like the iteration over deltas."""
        return _Frames(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Delta]:
        frame = await self.next_frame()
        if frame is None:
            raise StopAsyncIteration
        return frame.deltas

    async def completion(self) -> Completion:
        """Waits for the end and returns what was not read yet as a whole; raises the error that ended it."""
        self._whole = True
        state, answer = self.state, self.state.answer
        answer.set_max_ready(MAX_WHOLE_FRAMES)
        while not state.finished:
            await self._wait()
        if state.error is not None:
            raise state.error
        choices = gather(answer.take_all(), self.request.sampling.n)
        return Completion(
            self.request_id,
            self.session_id,
            self.group,
            choices,
            answer.usage,
            answer.session,
            answer.resumed,
        )

    async def confirm(self) -> None:
        """Says that the caller of the turn is there and gets the end of its answer; see `confirms`."""
        if self.request.confirms:
            await self._owner.confirm_delivery(self)

    async def cancel(self, reason: str = "") -> None:
        """Ends the generation, unless it has ended; idempotent."""
        if not self.finished:
            await self._owner.cancel_stream(self, reason)

    def forget(self) -> None:
        """Forgets the stream without ending it; nothing more arrives."""
        self._owner.forget_stream(self)

    def leave(self) -> None:
        """Forgets the stream while it runs on, for a caller that will attach to it."""
        self._owner.leave_stream(self)

    def wake_reader(self) -> None:
        """Something arrived; the client calls it."""
        waiter = self._waiter
        if waiter is None or (self._whole and not self.state.finished):
            return
        self._waiter = None
        if not waiter.done():
            waiter.set_result(None)

    async def open(self) -> Self:
        """Publishes the request, once."""
        await self._owner.open_stream(self)
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        await self._owner.open_stream(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cancel("the caller left")
        self._owner.forget_stream(self)

    async def _wait(self) -> None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None


class _Frames:
    """The iterator over the frames of a stream."""

    def __init__(self, stream: GenerationStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tokens:
        frame = await self._stream.next_frame()
        if frame is None:
            raise StopAsyncIteration
        return frame
