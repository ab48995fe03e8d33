"""Decides how often the text of streams is sent, by the number of streams. Pure: time is an argument.

Each piece of a stream is a frame, an event and a write in every process up to the caller, so its cost hardly
depends on how many tokens are in it. A single stream gets every token at once. The more streams there are,
the longer their tokens are gathered, up to a bound that no reader notices.
"""

# An event cost leader, broker and gateway some 0.1 ms of CPU in all where it was measured (decision 0051). At
# that, the events of a group's streams take less than half a core until the bound is reached.
PER_STREAM_S = 0.00025


class StreamPace:
    """The interval at which all streams of a group are sent together.

    Args:
        longest_s: Bound of the interval in seconds; 0: tokens are sent after each step.
        per_stream_s: What each stream beside the first adds to the interval, in seconds.
    """

    def __init__(self, longest_s: float, per_stream_s: float = PER_STREAM_S) -> None:
        self._longest_s = longest_s
        self._per_stream_s = per_stream_s
        self._sent_at = float("-inf")

    def note_sent(self, now: float) -> None:
        """Notes that the streams were sent at this time, in monotonic seconds."""
        self._sent_at = now

    def due_at(self, num_streams: int) -> float:
        """Returns when so many streams are to be sent next, in monotonic seconds."""
        return self._sent_at + min(self._longest_s, self._per_stream_s * (num_streams - 1))
