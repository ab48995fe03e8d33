"""The events of an answer as transports read them, whatever makes them."""

from typing import Protocol

from services.gateway.admission.errors.refusals import ErrorAnswer

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
