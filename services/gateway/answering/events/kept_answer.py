"""The port to formats that store an answer before its last event is sent, such as the Responses API."""

from typing import Protocol

from services.gateway.answering.events.source import StreamEvent
from services.gateway.answering.events.writer import EventWriter
from shared.errors import RyzError
from shared.messages import GenerateRequest


class KeptAnswer(Protocol):
    """Makes one answer from its frames and stores it.

    The events of `closing` are sent first, then the answer is stored, then its last events are sent. If a
    stream fails after its beginning, the failure is a part of the answer: it is stored, and the stream has a
    regular end.
    """

    def begin(self, request: GenerateRequest) -> EventWriter:
        """Begins the answer; `request` is the generation as it runs."""
        ...

    def fail(self, error: RyzError) -> bool:
        """Ends the answer by an error; returns whether that counts as a failed stream."""
        ...

    async def save(self) -> None:
        """Stores the answer; never raises an error of the store."""
        ...

    def last_events(self) -> list[StreamEvent]:
        """The events after those of `closing` or `fail`, once the answer is stored."""
        ...

    async def body(self) -> bytes:
        """The body of the whole answer."""
        ...
