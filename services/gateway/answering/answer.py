"""The answer to a call: typed parts with one end, whatever the transport and the format.

An `Answer` is an asynchronous context manager. Entering it starts the generations or attaches to them;
leaving it early cancels them, or parks them if the caller may return. Inside, a transport reads either frames
up to the end, or whole completions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from services.gateway.admission.caller import Caller
from services.gateway.admission.disconnects import ClientDisconnected, StreamLeft
from services.gateway.admission.errors.shapes import renamed
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.envelope import Envelope, envelope_of
from services.gateway.answering.events.frame_sources import FrameSource, PromptFrames, frame_source
from services.gateway.answering.intake.model_names import told_error
from services.gateway.answering.resumption.detached_streams import DetachedStreams
from services.gateway.answering.resumption.resume_token import ResumeToken
from services.gateway.answering.running_call import RunningCall
from shared.client import Completion, GenerationStream
from shared.errors import Cancelled, Overloaded, RyzError, Unavailable
from shared.messages import Accepted, GenerateRequest, SessionOutcome, Usage
from shared.messages.answer_parts import Resumed

DEADLINE_MARGIN_S = 2.0  # past the deadline of the generations, which is to come first


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The last part of an answer that ended well.

    Attributes:
        usages: One for each generation.
        last_seq: The number of the last frame of the first generation.
        session: What became of the turn; None if the caller named no session.
        resumed: As in `Done`, if it is so of any generation.
    """

    usages: list[Usage]
    last_seq: int
    session: SessionOutcome | None
    resumed: Resumed = ""


class Answer:
    """The answer to one call.

    Errors that leave the block have the caller's names of fields. `StreamLeft` replaces the error that ended
    the call if its stream goes on and its client is still connected: the gateway stops, or the client did not
    read.

    Args:
        context: What all calls share.
        caller: Gets the answer; its outcome is filled in on the way.
        detached: Parks streams whose caller leaves.
        start: Starts the generations, or attaches to them, and says what they are by `set_parts` and `enter`.
        timeout_s: Seconds that the generations have.
        field_names: The caller's names of fields of `GenerateRequest`.
        streamed: The caller asked for events.
        event_ids: The events have ids.

    Attributes:
        running: Ends the call early.
        requests: The generations as they were asked for.
        token: By which another gateway can make the same events.
        joined: The only stream was joined after its first frames.
    """

    __slots__ = (
        "_call_id",
        "_caller",
        "_detached",
        "_field_names",
        "_grace_s",
        "_known",
        "_metrics",
        "_source",
        "_start",
        "event_ids",
        "joined",
        "requests",
        "running",
        "streamed",
        "token",
    )

    def __init__(
        self,
        context: GatewayContext,
        caller: Caller,
        detached: DetachedStreams,
        start: "Callable[[Answer], Awaitable[None]]",
        *,
        timeout_s: float,
        field_names: Mapping[str, str],
        streamed: bool = True,
        event_ids: bool = True,
    ) -> None:
        self.streamed = streamed
        self.event_ids = event_ids
        self.running = RunningCall(caller, context.running, timeout_s + DEADLINE_MARGIN_S)
        self.requests: Sequence[GenerateRequest] = ()
        self.token: ResumeToken
        self.joined = False
        self._caller = caller
        self._metrics = context.metrics
        self._detached = detached
        self._start = start
        self._field_names = field_names
        self._call_id = ""
        self._grace_s = 0.0
        self._known = False
        self._source: FrameSource | None = None

    def set_parts(self, requests: Sequence[GenerateRequest], token: ResumeToken, call_id: str = "") -> None:
        """Sets what is answered; `call_id` is for a call with several generations. Called by `start`."""
        self.requests, self.token, self._call_id = requests, token, call_id

    async def enter(self, stream: GenerationStream) -> None:
        """Starts a generation that ends with the block. Called by `start`."""
        await stream.__aenter__()
        self.running.streams.append(stream)

    async def enter_with_grace(
        self, stream: GenerationStream, grace_s: float, *, known: bool = False
    ) -> None:
        """Starts or takes over a generation that may go on after its caller has left. Called by `start`.

        Args:
            stream: The only one of the answer.
            grace_s: Seconds for which it may go on; 0: it does not.
            known: The caller knows the id of the stream before the answer begins.
        """
        await self.enter(stream)
        self._grace_s, self._known = grace_s, known
        self.running.check_running()

    def waits_for(self) -> str:
        """See `CallAnswer`."""
        return next(filter(None, (stream.waits_for for stream in self.running.streams)), "")

    async def __aenter__(self) -> Self:
        failure: BaseException | None = None
        self.running.begin()
        try:
            await self._start(self)
        except BaseException as error:
            failure = error
        if failure is not None:
            await self.__aexit__(type(failure), failure, failure.__traceback__)
            try:
                raise failure
            finally:
                failure = None  # else this frame and the error's traceback would keep each other alive
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = error
        if self._source is not None:
            try:
                await self._source.close()
            except BaseException as failure:  # the generations are ended all the same
                ended = failure
        for stream in reversed(self.running.streams):
            try:
                await self._leave(stream, ended)
            except BaseException as failure:
                ended = failure
        try:
            self.running.end(ended)
        except Exception as reason:
            ended = reason
        if isinstance(ended, RyzError):
            ended = renamed(ended, self._field_names)
            ended = told_error(ended, self._caller)
        if ended is not None and ended is not error:
            try:
                raise ended from None
            finally:
                ended = None  # as above

    async def wait_accepted(self) -> None:
        """Waits until all generations are accepted, and notes it for the headers of the answer."""
        outcome = self._caller.outcome
        for stream in self.running.streams:
            if not self.joined:
                await stream.wait_accepted()
            outcome.accepted = outcome.accepted or stream.accepted
            if not outcome.group:  # a stream has none if it has lost its group since
                outcome.group = stream.group or (stream.accepted.group if stream.accepted is not None else "")
        self._source = frame_source(self.running.streams)

    async def next_frames(self) -> PromptFrames | None:
        """The next frames, after `wait_accepted`; None after the last. Cancelling the wait loses nothing.

        Raises:
            RyzError: A generation failed: this is the end.
        """
        assert self._source is not None
        found = await self._source.next_frames()
        if found is not None and found.frames and not self._caller.outcome.first_text_s:
            self._caller.outcome.first_text_s = asyncio.get_running_loop().time()
        return found

    @property
    def accepted(self) -> Accepted | None:
        """The acceptance of the first generation; None before, and for a stream that was joined later."""
        return self._caller.outcome.accepted

    @property
    def exhausted(self) -> bool:
        """Returns whether `next_frames` is known to return None."""
        return self._source is not None and self._source.ended

    def end(self) -> AnswerEnd:
        """The end, after the last frames."""
        streams, outcome = self.running.streams, self._caller.outcome
        outcome.usages = [stream.usage for stream in streams]
        outcome.session = streams[0].session
        asked = streams[0].request.session
        session = outcome.session if asked is not None and asked.given else None
        resumed: Resumed = next((stream.resumed for stream in streams if stream.resumed), "")
        return AnswerEnd(outcome.usages, streams[0].next_seq - 1, session, resumed)

    async def completions(self) -> list[Completion]:
        """Waits for the whole answer: one completion for each generation, in place of frames and end.

        Raises:
            RyzError: A generation failed.
        """
        streams, outcome = self.running.streams, self._caller.outcome
        parts = [await stream.completion() for stream in streams]
        outcome.group, outcome.accepted, outcome.session = (
            parts[0].group,
            streams[0].accepted,
            parts[0].session,
        )
        outcome.usages = [part.usage for part in parts]
        return parts

    def note_failure(self, error: RyzError, *, counts: bool) -> None:
        """Notes an error that is sent as a part of the answer; `counts`: the stream counts as failed."""
        if counts:
            self._metrics.count_failed_stream(error.code)

    async def confirm(self) -> None:
        """Confirms the turn if it waits for that and the caller is still there; before the end is sent."""
        stream = self.running.streams[0]
        if stream.request.confirms:
            await asyncio.sleep(0)  # here the call ends if the caller has left
            await stream.confirm()

    def envelope(self, *, whole: bool = False) -> Envelope:
        """The fields that all parts share; those of a whole answer name the weights as well."""
        accepted = self._caller.outcome.accepted if whole else None
        return envelope_of(self.token, self.requests[0], self._call_id, accepted)

    async def _leave(self, stream: GenerationStream, error: BaseException | None) -> None:
        """Ends a generation that has not ended, parks it, or lets it run on without this gateway."""
        if not (isinstance(error, asyncio.CancelledError) and self._stays(stream)):
            await stream.__aexit__(None, None, None)
        elif self._caller.delivery.started and not isinstance(self.running.reason, ClientDisconnected):
            raise StreamLeft

    def _stays(self, stream: GenerationStream) -> bool:
        """Parks or leaves the stream if it may go on after its call; returns whether it does."""
        reason = self.running.reason
        may_return = self._grace_s > 0 and (self._known or self._caller.delivery.started)
        if not may_return or stream.finished:
            return False
        # the second and the third cut off what was not read
        if isinstance(reason, ClientDisconnected | Cancelled | Overloaded):
            return self._detached.park_stream(stream, self._grace_s)
        if isinstance(reason, Unavailable):
            self._detached.leave_stream(stream)
            return True
        return False
