"""The frames that were sent, kept for callers that missed some.

Frames of a request stay while it runs and for a while after its end; all of them together are bounded by
bytes. Decides only what is kept; sending is done elsewhere. Pure: time is an argument.
"""

from dataclasses import dataclass, field

from shared.messages import Accepted, AnyFrame, Done, Failed, ResendReply, Tokens

FRAME_BYTES = 150  # a frame without its text, and the objects around it
LOGPROB_BYTES = 60


@dataclass(slots=True)
class Retained:
    """What is kept of one request. `frames[0]` has number `first_seq`; `ended_at` is None while it runs."""

    attempt: int
    first_seq: int
    frames: list[AnyFrame] = field(default_factory=list)
    num_bytes: int = 0
    ended_at: float | None = None


def estimate_bytes(frame: AnyFrame) -> int:
    """About how many bytes a frame takes, on the wire or in memory; never less than on the wire."""
    if isinstance(frame, Accepted):
        return 2 * FRAME_BYTES + 4 * len(frame.session_id)
    if not isinstance(frame, Tokens):
        return 2 * FRAME_BYTES + (4 * len(frame.message) if isinstance(frame, Failed) else 0)
    size = FRAME_BYTES
    for delta in frame.deltas:
        size += 60 + 4 * len(delta.text) + len(delta.token_ids)
        for logprob in delta.logprobs:
            size += LOGPROB_BYTES + 4 * len(logprob.token)
            size += sum(LOGPROB_BYTES + 4 * len(top.token) for top in logprob.top)
    return size


class Outbox:
    """Sent frames by request. One attempt of a request is kept, the newest."""

    def __init__(self, *, retention_s: float, max_bytes: int) -> None:
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._requests: dict[str, Retained] = {}
        self._ended: dict[str, None] = {}  # in order of their end
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def attempt(self, request_id: str) -> int | None:
        """The attempt that is known of a request; None: it is unknown (by now)."""
        retained = self._requests.get(request_id)
        return None if retained is None else retained.attempt

    def open(self, request_id: str, attempt: int, first_seq: int = 0) -> None:
        """Begins to keep an attempt; frames of an earlier one are forgotten."""
        self._forget(request_id)
        self._requests[request_id] = Retained(attempt, first_seq)

    def add(self, frame: AnyFrame, now: float) -> None:
        """Keeps a frame of an open request; `Done` and `Failed` start its retention time."""
        retained = self._requests[frame.request_id]
        retained.frames.append(frame)
        size = estimate_bytes(frame)
        retained.num_bytes += size
        self.num_bytes += size
        if isinstance(frame, Done | Failed):
            retained.ended_at = now
            self._ended[frame.request_id] = None
        if self.num_bytes > self._max_bytes:
            self._make_room()

    def expire(self, now: float) -> None:
        """Forgets the requests that ended more than the retention time ago."""
        while self._ended:
            request_id = next(iter(self._ended))
            ended_at = self._requests[request_id].ended_at
            if ended_at is None or ended_at + self._retention_s > now:
                return
            self._forget(request_id)

    def resend(
        self, request_id: str, attempt: int, from_seq: int, max_bytes: int = 512 * 1024
    ) -> ResendReply:
        """The frames from a number on, as many as fit; unknown if they, or the attempt, are not kept."""
        retained = self._requests.get(request_id)
        if retained is None or retained.attempt != attempt or from_seq < retained.first_seq:
            return ResendReply(known=False)
        frames: list[AnyFrame] = []
        for frame in retained.frames[from_seq - retained.first_seq :]:
            max_bytes -= estimate_bytes(frame)
            if max_bytes < 0 and frames:
                break
            frames.append(frame)
        return ResendReply(known=True, next_seq=retained.first_seq + len(retained.frames), frames=frames)

    def _forget(self, request_id: str) -> None:
        retained = self._requests.pop(request_id, None)
        if retained is not None:
            self.num_bytes -= retained.num_bytes
            self._ended.pop(request_id, None)

    def _make_room(self) -> None:
        """Forgets what ended first; if nothing did, the older half of the largest request's frames."""
        while self.num_bytes > self._max_bytes and self._ended:
            self._forget(next(iter(self._ended)))
        if self.num_bytes > self._max_bytes and self._requests:
            largest = max(self._requests.values(), key=lambda retained: retained.num_bytes)
            dropped = largest.frames[: (len(largest.frames) + 1) // 2]
            del largest.frames[: len(dropped)]
            largest.first_seq += len(dropped)
            freed = sum(map(estimate_bytes, dropped))
            largest.num_bytes -= freed
            self.num_bytes -= freed
