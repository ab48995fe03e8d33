"""Orders the frames of one request by their numbers, and decides when to ask for missing ones. Pure.

A frame that arrives too early is held until those before it are here. The leader keeps the frames it has sent
for a while, so the client answers a gap or a long silence by asking for them (`AskResend`). Questions without
an answer are repeated after a pause, up to `ClientConstants.resend_attempts` in a row.
"""

from shared.client.settings import ClientSettings
from shared.messages import AnyFrame


class ReorderBuffer:
    """The frames of one request that wait for an earlier one, and the question for what is missing.

    Attributes:
        next_seq: The number of the next frame in order.
        asking: Whether a question to the leader is unanswered.
    """

    __slots__ = ("_ask_at", "_held", "_settings", "_unanswered", "asking", "next_seq")

    def __init__(self, settings: ClientSettings, next_seq: int) -> None:
        self.next_seq = next_seq
        self.asking = False
        self._settings = settings
        self._held: dict[int, AnyFrame] = {}
        self._unanswered = 0  # questions in a row
        self._ask_at = 0.0  # the earliest time of the next question

    @property
    def num_held(self) -> int:
        """Frames that wait for one before them."""
        return len(self._held)

    def start_attempt(self) -> None:
        """Forget what belongs to the attempt before; the numbers go on."""
        self._held.clear()
        self.asking = False
        self._unanswered, self._ask_at = 0, 0.0

    def start_at(self, seq: int) -> None:
        """Expect frames from that number on; called before the first one."""
        self.next_seq = seq

    def hold(self, frame: AnyFrame) -> bool:
        """Keep a frame that is not the next one, if there is room; False if it was here before."""
        if frame.seq < self.next_seq or frame.seq in self._held:
            return False
        if len(self._held) < self._settings.constants.max_buffered_frames:
            self._held[frame.seq] = frame
        return True

    def advance_past(self, seq: int) -> AnyFrame | None:
        """Frame `seq` was taken; return the one behind it if it is held."""
        self.next_seq = seq + 1
        if self._held:
            return self._held.pop(self.next_seq, None)
        self._unanswered = 0
        return None

    def end_at(self, seq: int) -> None:
        """Frame `seq` was the last one."""
        self.next_seq = seq + 1
        self._held.clear()

    def drop_held(self) -> None:
        """Drop the held frames: the request has ended."""
        self._held.clear()

    def start_asking(self) -> None:
        """A question goes to the leader."""
        self.asking = True

    def stop_asking(self) -> None:
        """The question was answered, or its time is over."""
        self.asking = False

    def count_answer(self) -> None:
        """An answer brought frames, or said that none are missing."""
        self._unanswered = 0

    def count_unanswered(self, now: float) -> bool:
        """A question had no useful answer; returns whether to ask once more, after a pause."""
        self._unanswered += 1
        if self._unanswered >= self._settings.constants.resend_attempts:
            return False
        self.postpone_question(now)
        return True

    def postpone_question(self, now: float) -> None:
        """Ask later, without counting a failure."""
        self._ask_at = now + self._settings.constants.resend_timeout_s / 2

    def may_ask(self, now: float) -> bool:
        """Whether a question about a gap may be sent now."""
        return not self.asking and now >= self._ask_at

    def must_ask(self, now: float, heard_at: float) -> bool:
        """Whether a question is due: for a gap, a silence since `heard_at`, or one without an answer."""
        silent = now - heard_at >= self._settings.constants.probe_interval_s
        return self.may_ask(now) and (silent or bool(self._held) or self._unanswered > 0)

    def due(self, heard_at: float, deadline: float) -> float:
        """When the next question is due if nothing arrives; `deadline` at the latest."""
        if self.asking:
            return deadline
        patience = 0.0 if self._held or self._unanswered else self._settings.constants.probe_interval_s
        return min(deadline, max(self._ask_at, heard_at + patience))
