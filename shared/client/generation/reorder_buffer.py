"""Frames into the order of their numbers, and when to ask for those that are missing. Pure.

A frame that comes too early is held until those before it are here. The leader keeps what it has sent for a
while, so a gap or a long silence is answered by asking it; somebody who does not answer is asked again, so
often and no more.
"""

from shared.client.settings import ClientSettings
from shared.messages import AnyFrame


class FrameOrder:
    """What has come of one attempt.

    next_seq: the number of the frame that is to come next. heard_at: when something came last. asking: the
    leader was asked and has not answered yet.
    """

    __slots__ = ("_held", "_retry_at", "_settings", "_tries", "asking", "heard_at", "next_seq")

    def __init__(self, settings: ClientSettings, next_seq: int, now: float) -> None:
        self.next_seq = next_seq
        self.heard_at = now
        self.asking = False
        self._settings = settings
        self._held: dict[int, AnyFrame] = {}
        self._tries = 0  # unanswered questions in a row
        self._retry_at = 0.0

    @property
    def num_held(self) -> int:
        """Frames that wait for one before them."""
        return len(self._held)

    def begin(self) -> None:
        """A new attempt; what was held belongs to the old one."""
        self._held.clear()
        self.asking = False
        self._tries, self._retry_at = 0, 0.0

    def knows(self, seq: int) -> bool:
        """Whether that frame has been here before."""
        return seq < self.next_seq or seq in self._held

    def hold(self, frame: AnyFrame) -> None:
        """Keeps a frame that is too early, if there is room."""
        if len(self._held) < self._settings.max_buffered_frames:
            self._held[frame.seq] = frame

    def release(self) -> AnyFrame | None:
        """The frame that is next, if it was held."""
        return self._held.pop(self.next_seq, None) if self._held else None

    def drop(self) -> None:
        """Nothing is missing any more: the request is over."""
        self._held.clear()

    def advance(self, seq: int) -> None:
        """That frame was handed on."""
        self.next_seq = seq + 1

    def whole(self) -> None:
        """The leader is well again, unless there is still a gap."""
        if not self._held:
            self._tries = 0

    def answered(self) -> None:
        """An answer brought something."""
        self._tries = 0

    def unanswered(self, now: float) -> bool:
        """A question had no answer, or a useless one; whether there is to be another one, after a pause."""
        self._tries += 1
        if self._tries >= self._settings.resend_attempts:
            return False
        self.pause(now)
        return True

    def pause(self, now: float) -> None:
        """Asks later, and blames nobody."""
        self._retry_at = now + self._settings.resend_timeout_s / 2

    def may_ask(self, now: float) -> bool:
        """Whether a gap that was found now may be asked about now."""
        return not self.asking and now >= self._retry_at

    def misses(self, now: float) -> bool:
        """Whether there is reason to ask: a gap, a silence, or a question without an answer."""
        silent = now - self.heard_at >= self._settings.probe_interval_s
        return silent or bool(self._held) or self._tries > 0

    def due(self, deadline: float) -> float:
        """When to look at it again, if nothing comes until then."""
        if self.asking:
            return deadline
        patience = 0.0 if self._held or self._tries else self._settings.probe_interval_s
        return min(deadline, max(self._retry_at, self.heard_at + patience))
