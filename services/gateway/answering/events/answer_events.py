"""The events of an answer, some at a time, for transports that stream.

Ids of events, and what of a resumed stream its client has already, are the same for all formats.
"""

import asyncio

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.answering.answer import Answer
from services.gateway.answering.events.frame_sources import PromptFrames
from services.gateway.answering.events.ports import EventBatch, EventWriter, KeptAnswer, StreamEvent
from services.gateway.answering.resumption.event_ids import NOTHING_YET, UNNUMBERED, EventId, what_follows
from shared.errors import RyzError
from shared.messages import Usage

PING_S = 10.0  # between two pings while no text comes


class AnswerEvents:
    """The events of one answer.

    Args:
        answer: Inside its block.
        writer: Makes the events.
        last: The last event that the caller has; its successors come.

    Attributes:
        ended: See `EventSource`.
        numbered: See `EventSource`.
    """

    def __init__(self, answer: Answer, writer: EventWriter, last: EventId = NOTHING_YET) -> None:
        self.ended = False
        self.numbered = False
        self._answer = answer
        self._writer = writer
        self._last = last
        self._batch: EventBatch = []
        self._item: PromptFrames | None = PromptFrames(0, [])
        self._unread = True  # `_item` is not translated yet
        self._begun = False

    async def open(self, wait_s: float) -> None:
        """See `EventSource`."""
        await self._answer.wait_accepted()
        self._add(0, self._writer.opening(self._answer.accepted))
        try:
            async with asyncio.timeout(wait_s):
                self._item = await self._answer.next_frames()
        except TimeoutError:
            pass  # a slow start is no failure: the answer begins, the text follows

    async def next_batch(self) -> EventBatch:
        """See `EventSource`. The turn is confirmed before the last events."""
        while True:
            if self._unread:
                self._unread = False
                if self._item is None:
                    return await self._closing()
                self._translate(self._item)
                if self._batch and not self._answer.exhausted:
                    return self._take()
            ping = self._writer.ping()
            if ping is None:
                self._item = await self._answer.next_frames()
            elif not await self._read_in_time():
                return [(UNNUMBERED, [ping])]
            self._unread = True

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventSource`."""
        return self._writer.failure(answer)

    async def _read_in_time(self) -> bool:
        try:
            async with asyncio.timeout(PING_S):
                self._item = await self._answer.next_frames()
        except TimeoutError:
            return False
        return True

    def _translate(self, item: PromptFrames) -> None:
        for frame in item.frames:
            if frame.prompt is not None or not self._begun:  # some leaders do not tell the counts
                self._begun = True
                self._add(0, self._writer.begin(frame.prompt or Usage()))
            self._add(frame.seq, self._writer.deltas(frame.deltas, item.prompt))

    async def _closing(self) -> EventBatch:
        end = self._answer.end()
        if not self._begun:
            self._add(0, self._writer.begin(end.usages[0]))
        self._add(end.last_seq, self._writer.closing(end.usages, end.session, end.resumed))
        await self._answer.confirm()
        self.ended = True
        return self._take()

    def _add(self, seq: int, events: list[StreamEvent]) -> None:
        if seq <= self._last.seq:
            events = what_follows(events, seq, self._last)
        if events:
            self._batch.append((seq, events))

    def _take(self) -> EventBatch:
        batch, self._batch = self._batch, []
        return batch


class KeptAnswerEvents:
    """The events of an answer that is stored before its last events; implements `EventSource`.

    Args:
        answer: Inside its block.
        kept: Makes and stores it.
    """

    def __init__(self, answer: Answer, kept: KeptAnswer) -> None:
        self.ended = False
        self.numbered = False
        self._answer = answer
        self._kept = kept
        self._events = AnswerEvents(answer, kept.begin(answer.requests[0]))
        self._over = False  # only the events after the answer is stored are left

    async def open(self, wait_s: float) -> None:
        """See `EventSource`."""
        await self._events.open(wait_s)

    async def next_batch(self) -> EventBatch:
        """See `EventSource`; raises only if the answer goes on elsewhere."""
        if not self._over:
            batch = await self._next_batch()
            if batch is not None:
                return batch
        await self._kept.save()
        self.ended = True
        return [(UNNUMBERED, self._kept.last_events())]

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventSource`."""
        return self._events.failure(answer)

    async def _next_batch(self) -> EventBatch | None:
        """The next events before the answer is stored; None if its generation failed."""
        try:
            batch = await self._events.next_batch()
        except RyzError as error:
            if error.data.get("reason") == "attached_elsewhere":
                raise
            self._answer.note_failure(error, counts=self._kept.fail(error))
            return None
        self._over = self._events.ended
        return batch
