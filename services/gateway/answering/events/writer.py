"""The port between the frames of a stream and its events in one format."""

from collections.abc import Sequence
from typing import Protocol

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.answering.events.source import StreamEvent
from shared.messages import Accepted, Delta, SessionOutcome, Usage
from shared.messages.generate import Resumed


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
