"""The writer of a stream that is resumed: its events begin after the last one that the client has."""

from collections.abc import Sequence

from services.gateway.admission.refusals import ErrorAnswer
from services.gateway.answering.event_ids import UNNUMBERED, EventId, what_follows
from services.gateway.answering.format import EventWriter
from shared.messages import Accepted, Delta, SessionOutcome, Usage


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
