"""A response that runs with its caller: makes its events, and stores it before its end is told."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.answering.answer_cost import entries_of_token
from services.gateway.answering.events.ports import DONE, EventWriter, StreamEvent
from services.gateway.formats.responses.events import ResponseEvent, ResponseEvents
from services.gateway.formats.responses.translation import ResponseCall, with_our_names
from shared.client.calls.responses_client import ResponsesClient
from shared.errors import RyzError
from shared.flow.backoff import Backoff
from shared.messages import Accepted, Delta, GenerateRequest, ResponseRecord, SessionOutcome, Usage
from shared.messages.answer_parts import Resumed

log = structlog.get_logger(__name__)
_STORE_PAUSE_S = 0.1  # before the end of a response is stored again; doubles
_TRANSIENT = frozenset({"unavailable", "overloaded", "group_lost"})
_MANY = 20_000  # tokens and log probabilities; beyond it an answer is encoded in a thread


@dataclass(slots=True)
class ResponseEnd:
    """Stores the end of a response.

    Attributes:
        store: Keeps the response; None if it is not to be kept.
        call: What was asked for.
        is_new: There is no record of it yet.
        tried_until: Unix time until which it is tried again after a failure that may pass, such as the loss
            of all groups, or of the store.
    """

    store: ResponsesClient | None
    call: ResponseCall
    is_new: bool = True
    tried_until: float = 0.0

    def is_final(self, error: RyzError) -> bool:
        """Whether the response ends with this error; if not, it is left for a later run."""
        return error.code not in _TRANSIENT or time.time() >= self.tried_until

    async def save(self, events: ResponseEvents) -> None:
        """Stores the whole response. If that fails for good, the response says that it is not stored."""
        if self.store is None:
            return
        record, pauses = self.call.record(events.whole(), ended=True), Backoff(_STORE_PAUSE_S, 2.0)
        while True:
            try:
                await self.store.put(record, is_new=self.is_new)
                return
            except RyzError as error:
                if self.is_final(error):
                    log.warning(
                        "a response was not stored", response_id=record.response_id, error=error.message
                    )
                    events.not_stored()
                    return
            await asyncio.sleep(pauses.next_s())


class KeptResponse:
    """Implements `KeptAnswer`.

    Args:
        call: What was asked for.
        store: Keeps the response, if it is to be kept.
        shows_defaults: The first events have the model's sampling defaults already.
    """

    def __init__(self, call: ResponseCall, store: ResponsesClient, *, shows_defaults: bool = True) -> None:
        self._call = call
        self._store = store
        self._shows_defaults = shows_defaults
        self._events = call.new_events()

    def begin(self, request: GenerateRequest) -> EventWriter:
        """See `KeptAnswer`."""
        self._call = self._call.for_request(request)
        self._events = self._call.new_events()
        return ResponseWriter(self._events, shows_defaults=self._shows_defaults)

    def fail(self, error: RyzError) -> bool:
        """See `KeptAnswer`; a cancelled response has not failed."""
        self._events.fail(with_our_names(error))
        return self._events.status == "failed"

    async def save(self) -> None:
        """See `KeptAnswer`."""
        await ResponseEnd(self._store if self._call.stored else None, self._call).save(self._events)

    def last_events(self) -> list[StreamEvent]:
        """See `KeptAnswer`."""
        return [*_stream_events([self._events.last()]), DONE]

    async def body(self) -> bytes:
        """See `KeptAnswer`."""
        whole, logprobs = self._events.whole(), self._call.request.sampling.logprobs
        if whole["usage"]["output_tokens"] * entries_of_token(logprobs) > _MANY:
            return await asyncio.to_thread(msgspec.json.encode, whole)
        return msgspec.json.encode(whole)

    def unstored_record(self) -> ResponseRecord | None:
        """The record of a response that can be continued and is not kept; None for another one."""
        if self._call.stored or self._events.status not in {"completed", "incomplete"}:
            return None
        return self._call.record(self._events.whole(), ended=True)


class ResponseWriter:
    """Implements `EventWriter`; the last events of a response are those of `KeptResponse`.

    Args:
        events: Of the response.
        shows_defaults: See `KeptResponse`.
    """

    def __init__(self, events: ResponseEvents, *, shows_defaults: bool) -> None:
        self._events = events
        self._shows_defaults = shows_defaults

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """See `EventWriter`."""
        sampling = accepted.sampling if accepted is not None else None
        if self._shows_defaults:
            self._events.note_sampling(sampling)
        made = _stream_events(self._events.opening())
        self._events.note_sampling(sampling)
        return made

    def begin(self, prompt: Usage) -> list[StreamEvent]:
        """See `EventWriter`: the usage comes at the end."""
        return []

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """See `EventWriter`."""
        return _stream_events(self._events.deltas(deltas))

    def closing(
        self, usages: list[Usage], session: SessionOutcome | None = None, resumed: Resumed = ""
    ) -> list[StreamEvent]:
        """See `EventWriter`."""
        return _stream_events(self._events.finish(usages[0], int(time.time()), resumed))

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventWriter`: for a stream that is ended early."""
        return b"", answer.body

    def ping(self) -> StreamEvent | None:
        """See `EventWriter`."""
        return None


def _stream_events(events: Iterable[ResponseEvent]) -> list[StreamEvent]:
    return [event.for_stream for event in events]
