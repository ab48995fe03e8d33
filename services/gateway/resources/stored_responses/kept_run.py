"""One response on its way: frames become events, and the end is stored before its last event is out."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import structlog

from services.gateway.formats.responses.events import ResponseEvent, ResponseEvents
from services.gateway.formats.responses.kept_answer import ResponseEnd
from services.gateway.formats.responses.translation import ResponseCall, with_our_names
from services.gateway.resources.stored_responses.kept_events import EventRoom, KeptEvents
from shared.client import GenerationStream
from shared.errors import Cancelled, RyzError
from shared.messages import ResponseRecord, Tokens

FRAMES_AT_ONCE = 128  # made into events without a pause
log = structlog.get_logger(__name__)


class RunLeft(Exception):
    """The response goes on without this run: at another gateway, or later."""


async def event_batches(
    stream: GenerationStream, events: ResponseEvents, end: ResponseEnd, first: Sequence[Tokens] = ()
) -> AsyncIterator[list[ResponseEvent]]:
    """Yields the events after the opening, some at a time, up to the last one.

    Args:
        stream: The generation, which runs.
        events: Makes the events.
        end: Stores the response before its last event.
        first: Frames that were read already.

    Raises:
        RunLeft: Another gateway has attached to the generation, or it is to be tried again later.
    """
    try:
        frames = list(first) or await stream.next_frames(FRAMES_AT_ONCE)
        if stream.accepted is not None:
            events.note_sampling(stream.accepted.sampling)
        while frames:
            yield [event for frame in frames for event in events.deltas(frame.deltas)]
            frames = await stream.next_frames(FRAMES_AT_ONCE)
        yield events.finish(stream.usage, int(time.time()))
    except RyzError as error:
        elsewhere = isinstance(error, Cancelled) and error.data.get("reason") == "attached_elsewhere"
        if elsewhere or not end.is_final(error):
            raise RunLeft from error
        events.fail(with_our_names(error))
    await end.save(events)
    yield [events.last()]


class KeptRun:
    """A response that runs without its caller, and its events, which readers may follow.

    Attributes:
        exact: The events are those of the response as it began: it was not computed again since.
        left: Another gateway has it now.
        kept: The events that readers can have.
    """

    def __init__(self, call: ResponseCall, room: EventRoom, *, exact: bool = True) -> None:
        self.call = call
        self.exact = exact
        self.left = False
        self.events = call.new_events()
        self.kept = KeptEvents(room)
        self.kept.append(self.events.opening())
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        """Nothing more comes here."""
        return self.events.ended or self.left

    async def read(self, stream: GenerationStream, end: ResponseEnd) -> None:
        """Reads the generation to its end."""
        try:
            async for batch in event_batches(stream, self.events, end):
                self.kept.append(batch)
                self._wake()
        except RunLeft as left:
            log.info("a response is left", response_id=self.call.response_id, reason=str(left.__cause__))
            self.leave()

    def leave(self) -> None:
        """Lets readers know that the response goes on elsewhere."""
        self.left = True
        self._wake()

    def record(self, body: dict[str, object], *, ended: bool) -> ResponseRecord:
        """The record of the response."""
        return self.call.record(body, ended=ended)

    async def follow(self, after: int) -> AsyncIterator[list[ResponseEvent]]:
        """Yields the events whose numbers are above `after`, as they come; ends when nothing more comes.

        Raises:
            EventsGone: The reader is so slow that events are gone before it took them.
        """
        while True:
            if batch := self.kept.above(after):
                after += len(batch)
                yield batch
            elif self.over:
                return
            else:
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
