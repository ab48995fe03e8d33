"""The port between a stream and the format of its events, and the writer of a resumed stream."""

from collections.abc import Sequence
from typing import Protocol

from services.gateway.admission.refusals import ErrorAnswer
from services.gateway.answering.event_ids import UNNUMBERED, EventId, what_follows
from services.gateway.answering.resume_token import ResumeToken
from shared.messages import Accepted, Delta, GenerateRequest, SessionOutcome, Usage


class EventWriter(Protocol):
    """Makes the events of one stream from its frames, always the same ones; keeps no connection."""

    def opening(self, accepted: Accepted | None = None) -> bytes:
        """The events before the first text, which belong to frame 0; may be empty.

        Args:
            accepted: The acceptance of the first generation; None for a stream that was joined later.
        """
        ...

    def begin(self, prompt: Usage) -> bytes:
        """The events, of frame 0 too, that have the counts of the prompt; made before the first text."""
        ...

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0, seq: int = UNNUMBERED) -> bytes:
        """The events for new text of a prompt's choices, from frame number `seq`."""
        ...

    def closing(
        self, usages: list[Usage], seq: int = UNNUMBERED, session: SessionOutcome | None = None
    ) -> bytes:
        """The events after the last text, `[DONE]` included.

        Args:
            usages: One for each generation.
            seq: The number of the last frame.
            session: What became of the turn of a session.
        """
        ...

    def failure(self, answer: ErrorAnswer) -> bytes:
        """The last event of a stream that fails."""
        ...

    def ping(self) -> bytes:
        """An event that only shows that the stream goes on, without an id; empty: the format has none."""
        ...


class StreamFormats(Protocol):
    """The formats of streams, by the tokens that travel with their requests."""

    def writer(self, token: ResumeToken, request: GenerateRequest) -> EventWriter | None:
        """The writer of a stream, with event ids; None for a format that this gateway does not know."""
        ...

    def needs_start(self, token: ResumeToken, request: GenerateRequest) -> bool:
        """Returns whether events depend on earlier frames, so that all must be kept; the format is known."""
        ...


class ResumedWriter:
    """A writer whose events begin after the last one that the client has."""

    def __init__(self, writer: EventWriter, last: EventId) -> None:
        self._writer = writer
        self._last = last

    def opening(self, accepted: Accepted | None = None) -> bytes:
        """See `EventWriter`."""
        return what_follows(self._writer.opening(accepted), 0, self._last)

    def begin(self, prompt: Usage) -> bytes:
        """See `EventWriter`."""
        return what_follows(self._writer.begin(prompt), 0, self._last)

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0, seq: int = UNNUMBERED) -> bytes:
        """See `EventWriter`."""
        data = self._writer.deltas(deltas, prompt, seq)  # needed for every frame: writers count offsets
        return data if seq > self._last.seq else what_follows(data, seq, self._last)

    def closing(
        self, usages: list[Usage], seq: int = UNNUMBERED, session: SessionOutcome | None = None
    ) -> bytes:
        """See `EventWriter`."""
        return what_follows(self._writer.closing(usages, seq, session), seq, self._last)

    def failure(self, answer: ErrorAnswer) -> bytes:
        """See `EventWriter`."""
        return self._writer.failure(answer)

    def ping(self) -> bytes:
        """See `EventWriter`."""
        return self._writer.ping()
