"""Answers in the format of their calls: a whole body, or events."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.shapes import renamed
from services.gateway.answering.answer import DEADLINE_MARGIN_S, Answer
from services.gateway.answering.call import AnswerFormats, Call, StartedCall
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.events.answer_events import AnswerEvents, KeptAnswerEvents
from services.gateway.answering.events.ports import EventSource, KeptAnswer
from services.gateway.answering.intake.model_names import told_error
from services.gateway.answering.resumption.detached_streams import DetachedStreams
from services.gateway.answering.resumption.event_ids import NOTHING_YET, EventId
from services.gateway.answering.running_call import RunningCall
from shared.errors import RyzError


class CallAnswer(Protocol):
    """The answer to a call, an asynchronous context manager; inside its block it is read once.

    Attributes:
        streamed: The caller asked for events.
        event_ids: The events have ids.
    """

    streamed: bool
    event_ids: bool

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def body(self) -> bytes:
        """The body of the whole answer, whose turn is confirmed then."""
        ...

    def events(self, last: EventId = NOTHING_YET) -> EventSource:
        """The events of the answer, from the one after `last` on."""
        ...

    def waits_for(self) -> str:
        """What a generation waits for whose model is to be loaded; empty: none does."""
        ...


class FormattedAnswer(Answer):
    """The answer that generations give; see `Answer` for what it is read from.

    Args:
        context: What all calls share.
        caller: Gets the answer.
        detached: Parks streams whose caller leaves.
        start: Starts the generations, or attaches to them.
        formats: Of answers, by their kinds.
        timeout_s: Seconds that the generations have.
        field_names: The caller's names of fields of `GenerateRequest`.
        streamed: The caller asked for events.
        event_ids: The events have ids.
        kept: Makes and stores the answer; None: its format makes it.
    """

    __slots__ = ("_formats", "_kept")

    def __init__(
        self,
        context: GatewayContext,
        caller: Caller,
        detached: DetachedStreams,
        start: Callable[[Answer], Awaitable[None]],
        formats: AnswerFormats,
        *,
        timeout_s: float,
        field_names: Mapping[str, str],
        streamed: bool = True,
        event_ids: bool = True,
        kept: KeptAnswer | None = None,
    ) -> None:
        super().__init__(
            context,
            caller,
            detached,
            start,
            timeout_s=timeout_s,
            field_names=field_names,
            streamed=streamed,
            event_ids=event_ids,
        )
        self._formats = formats
        self._kept = kept

    def events(self, last: EventId = NOTHING_YET) -> EventSource:
        """See `CallAnswer`."""
        if self._kept is not None:
            return KeptAnswerEvents(self, self._kept)
        form = self._formats[self.token.kind]
        return AnswerEvents(self, form.writer(self.envelope(), self.token, self.requests), last)

    async def body(self) -> bytes:
        """See `CallAnswer`."""
        if self._kept is not None:
            return await self._kept_body(self._kept)
        form = self._formats[self.token.kind]
        parts = await self.completions()
        body = await form.encode_whole(self.envelope(whole=True), self.token, self.requests, parts)
        await self.confirm()
        return body

    async def _kept_body(self, kept: KeptAnswer) -> bytes:
        writer = kept.begin(self.requests[0])
        await self.wait_accepted()
        writer.opening(self.accepted)
        source = self._source
        assert source is not None
        while (item := await source.next_frames()) is not None:
            for frame in item.frames:
                writer.deltas(frame.deltas)
            await asyncio.sleep(0)
        end = self.end()
        writer.closing(end.usages, end.session, end.resumed)
        await kept.save()
        return await kept.body()


class MadeAnswer:
    """The answer to a call whose format makes it without the frames of generations: see `Call.whole`.

    Args:
        context: What all calls share.
        caller: Gets the answer.
        call: What is asked.
        timeout_s: Seconds that the call has.
    """

    def __init__(self, context: GatewayContext, caller: Caller, call: Call, timeout_s: float) -> None:
        self.streamed = call.stream
        self.event_ids = call.event_ids
        self._caller = caller
        running = RunningCall(caller, context.running, timeout_s + DEADLINE_MARGIN_S)
        self._started = StartedCall(call, caller, running, timeout_s)

    async def __aenter__(self) -> Self:
        self._started.running.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.running.end(error)
        if isinstance(error, RyzError):
            shown = renamed(error, self._started.call.field_names)
            shown = told_error(shown, self._caller)
            if shown is not error:
                raise shown from None

    async def body(self) -> bytes:
        """See `CallAnswer`."""
        whole = self._started.call.whole
        assert whole is not None
        return await whole(self._started)

    def events(self, last: EventId = NOTHING_YET) -> EventSource:
        """See `CallAnswer`."""
        events = self._started.call.events
        assert events is not None
        return events(self._started)

    def waits_for(self) -> str:
        """See `CallAnswer`: it begins at once, whatever runs it."""
        return ""
