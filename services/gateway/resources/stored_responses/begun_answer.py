"""A response in the background as its callers see it: begun, and followed while it runs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.answering.call import StartedCall
from services.gateway.answering.events.ports import DONE, EventBatch, EventSource, StreamEvent
from services.gateway.answering.resumption.event_ids import UNNUMBERED
from services.gateway.answering.run_call import trace_headers
from services.gateway.formats.responses.events import ResponseEvent
from services.gateway.formats.responses.translation import ResponseCall
from services.gateway.resources.stored_responses.background_runs import BackgroundRuns
from services.gateway.resources.stored_responses.kept_events import EventsGone
from services.gateway.resources.stored_responses.kept_run import KeptRun


class BegunResponse:
    """Begins a response that runs without its caller, and makes the answer to the call.

    Args:
        draft: What was asked for.
        background: Runs it.
    """

    def __init__(self, draft: ResponseCall, background: BackgroundRuns) -> None:
        self._draft = draft
        self._background = background

    async def whole(self, started: StartedCall) -> bytes:
        """See `Call.whole`: the response as it begins."""
        run = await self._begin(started)
        return msgspec.json.encode(run.call.fields)

    def events(self, started: StartedCall) -> EventSource:
        """See `Call.events`."""
        return RunEvents(partial(self._begin, started))

    async def _begin(self, started: StartedCall) -> KeptRun:
        call = self._draft.for_request(started.call.requests[0])
        headers = trace_headers(started.caller.headers)
        return await started.running.finish_work(self._background.begin(call, started.timeout_s, headers))


class RunEvents:
    """Follows a response that runs in this gateway; implements `EventSource`.

    It ends without a last event if the response goes on elsewhere, or if events are gone before the reader
    took them: the client resumes the stream then, at any gateway.

    Args:
        find: Finds or begins the response.
        after: The number of the last event that the client has; -1: none.
    """

    def __init__(self, find: Callable[[], Awaitable[KeptRun]], after: int = -1) -> None:
        self.ended = False
        self.numbered = True
        self._find = find
        self._after = after
        self._run: KeptRun
        self._batches: AsyncIterator[list[ResponseEvent]]

    async def open(self, wait_s: float) -> None:
        """See `EventSource`; does not wait for text."""
        self._run = await self._find()
        self._batches = self._run.follow(self._after)

    async def next_batch(self) -> EventBatch:
        """See `EventSource`."""
        try:
            batch = await anext(self._batches, None)
        except EventsGone:
            self.ended = True
            return []
        if batch is not None:
            return [(event.number, [event.for_stream]) for event in batch]
        self.ended = True
        return [(UNNUMBERED, [DONE])] if self._run.events.ended else []

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventSource`: for a stream that is ended early."""
        return b"", answer.body
