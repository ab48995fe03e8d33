"""The ports between answers and formats: events as transports read them, and what makes them of frames."""

from collections.abc import Sequence
from typing import Protocol

from services.gateway.admission.errors.refusals import ErrorAnswer
from shared.errors import RyzError
from shared.messages import Accepted, Delta, GenerateRequest, SessionOutcome, Usage
from shared.messages.answer_parts import Resumed

# the type of an event (empty: it has none) and its data; without data it is a comment
StreamEvent = tuple[bytes, bytes]
DONE: StreamEvent = (b"", b"[DONE]")  # the last event of OpenAI's streams
EventBatch = list[tuple[int, list[StreamEvent]]]  # the events of frames, with the frames' numbers


class EventSource(Protocol):
    """The events of one answer, inside its block.

    Attributes:
        ended: The last batch was returned.
        numbered: The events are numbered themselves, one in each entry of a batch; else frames are.
    """

    ended: bool
    numbered: bool

    async def open(self, wait_s: float) -> None:
        """Waits until the answer is accepted, and at most `wait_s` more for its first text.

        A transport says then that the answer begins; an error that is raised here can still be a refusal.
        """
        ...

    async def next_batch(self) -> EventBatch:
        """The next events: all that are ready, or a ping.

        Raises:
            RyzError: The answer failed: this is the end.
        """
        ...

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """The last event of a stream that fails."""
        ...


class EventWriter(Protocol):
    """Makes the events of one stream from its frames, always the same ones; keeps no connection."""

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """The events before the first text, which belong to frame 0; may be empty.

        Args:
            accepted: The acceptance of the first generation; None for a stream that was joined later.
        """
        ...

    def begin(self, prompt: Usage) -> list[StreamEvent]:
        """The events, of frame 0 too, that have the counts of the prompt: before the first text, once."""
        ...

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """The events for new text of a prompt's choices, all from one frame."""
        ...

    def closing(
        self, usages: list[Usage], session: SessionOutcome | None = None, resumed: Resumed = ""
    ) -> list[StreamEvent]:
        """The events after the last text, `[DONE]` included; they belong to the last frame.

        Args:
            usages: One for each generation.
            session: What became of the turn of a session.
            resumed: As in `Done`.
        """
        ...

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """The last event of a stream that fails."""
        ...

    def ping(self) -> StreamEvent | None:
        """An event that only shows that the stream goes on, without an id; None: the format has none."""
        ...


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
