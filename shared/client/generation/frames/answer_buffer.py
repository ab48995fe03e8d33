"""Keeps what a request has brought until its reader takes it, within bounds of frames and memory. Pure."""

from collections import deque

from shared.client.generation import endings
from shared.client.settings import ClientSettings
from shared.errors import RyzError
from shared.messages import Accepted, Done, SessionOutcome, Tokens, Usage
from shared.messages.generate import Resumed

_FRAME = 256  # bytes of a frame and of each of its deltas, beside their content
_ENTRY = 160  # of a log probability: a token, its text, a number
_PER_CHARACTER = 2  # of text; between one byte, of plain English, and four
_NO_USAGE = Usage()


def weight_of(frame: Tokens) -> int:
    """The approximate memory that a frame takes, in bytes."""
    weight = _FRAME
    for delta in frame.deltas:
        weight += _FRAME + _PER_CHARACTER * len(delta.text) + len(delta.token_ids)
        for entry in delta.logprobs:
            weight += _ENTRY * (1 + len(entry.top))
        for entry in delta.prompt_logprobs:
            weight += _ENTRY * (1 + len(entry.top))
        weight += _PER_CHARACTER * len(delta.prompt_text) + len(delta.embedding) + len(delta.prompt_token_ids)
    return weight


class AnswerBuffer:
    """The answer to one request, as far as it has come.

    Attributes:
        accepted: The latest `Accepted` frame.
        ready: The `Tokens` frames that the reader has not taken, in order.
        unread_bytes: The approximate memory that they take.
        last_usage: Token counts of the last frame; None until it has come, and if it has none.
        prompt_usage: Those of the prompt, which come with the first tokens of a stream.
        session: The outcome of a session's turn, once it has ended well.
        resumed: As in `Done`.
    """

    __slots__ = (
        "_max_bytes",
        "_max_ready",
        "accepted",
        "last_usage",
        "prompt_usage",
        "ready",
        "resumed",
        "session",
        "unread_bytes",
    )

    def __init__(self, settings: ClientSettings, max_ready: int) -> None:
        self.accepted: Accepted | None = None
        self.ready: deque[Tokens] = deque()
        self.unread_bytes = 0
        self.last_usage: Usage | None = None
        self.prompt_usage = _NO_USAGE
        self.session: SessionOutcome | None = None
        self.resumed: Resumed = ""
        self._max_ready = max_ready
        self._max_bytes = settings.constants.max_buffered_bytes

    @property
    def usage(self) -> Usage:
        """Token counts; zeros until the request has ended."""
        return self.last_usage or _NO_USAGE

    @property
    def behind(self) -> float:
        """How far the reader is behind; above 1 the request is ended."""
        return max(len(self.ready) / self._max_ready, self.unread_bytes / self._max_bytes)

    def add_tokens(self, frame: Tokens) -> bool:
        """Append a frame for the reader; False: too much waits for the reader, see `overflow`."""
        self.ready.append(frame)
        if frame.prompt is not None:
            self.prompt_usage = frame.prompt
        self.unread_bytes += weight_of(frame)
        return len(self.ready) <= self._max_ready and self.unread_bytes <= self._max_bytes

    def overflow(self, request_id: str) -> RyzError:
        """The error that ends a request whose reader is too far behind."""
        if len(self.ready) > self._max_ready:
            return endings.slow_reader(request_id, self._max_ready)
        return endings.answer_too_large(request_id, self._max_bytes)

    def set_accepted(self, frame: Accepted) -> None:
        """A group has accepted the request."""
        self.accepted = frame

    def set_end(self, frame: Done) -> None:
        """The request has ended well."""
        self.last_usage, self.session, self.resumed = frame.usage, frame.session, frame.resumed

    def set_max_ready(self, max_ready: int) -> None:
        """Let so many frames wait for the reader from here on."""
        self._max_ready = max_ready

    def take_frame(self) -> Tokens:
        """The first frame that the reader has not taken; there is one."""
        frame = self.ready.popleft()
        self.unread_bytes = self.unread_bytes - weight_of(frame) if self.ready else 0
        return frame

    def take_all(self) -> list[Tokens]:
        """All frames that the reader has not taken."""
        frames = list(self.ready)
        self.ready.clear()
        self.unread_bytes = 0
        return frames
