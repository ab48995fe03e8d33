"""The frames that were sent, kept for callers that missed some.

Frames of a request stay while it runs and for a while after its end; all of them together are bounded by
bytes. A request that can be given to another caller is kept with its frames. Decides only what is kept;
sending is done elsewhere. Pure: time is an argument.

They are kept as they were sent, encoded: some hundred thousand objects, which half a minute of frames is,
made each collection of garbage a pause of 0.1 to 0.3 s, in which the leader sent no heartbeat.
"""

from dataclasses import dataclass, field

import msgspec

from shared import codec
from shared.errors import Cancelled
from shared.messages import AnyFrame, Done, Failed, FrameBatch, GenerateRequest, ResendReply

FRAME_BYTES = 48  # around a frame
REQUEST_BYTES = 600
MESSAGE_BYTES = 120


@dataclass(slots=True)
class Retained:
    """What is kept of one request. `frames[0]` has number `first_seq`; `ended_at` is None while it runs.

    request: with the attempt that counts; None when nobody else can have it. reader: by what name it was
    given away last.
    """

    attempt: int
    first_seq: int
    request: GenerateRequest | None = None
    reader: str = ""
    frames: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    ended_at: float | None = None
    cancelled: bool = False
    failed: bool = False

    @property
    def next_seq(self) -> int:
        """The number of the next frame."""
        return self.first_seq + len(self.frames)

    def offer(self, tenant: str) -> GenerateRequest | None:
        """The request, if another caller of that tenant can have it.

        One that its caller has cancelled is over for everybody.
        """
        request = self.request
        return None if request is None or request.tenant != tenant or self.cancelled else request


def estimate_request_bytes(request: GenerateRequest) -> int:
    """About how many bytes a request takes in memory."""
    size = (
        REQUEST_BYTES + len(request.note) + len(request.prompt_token_ids or b"") + len(request.prompt or "")
    )
    size += sum(MESSAGE_BYTES + len(message.content) for message in request.messages or ())
    return size + sum(map(len, request.resume.token_ids if request.resume else ()))


class Outbox:
    """Sent frames by request, under the leader's key for it. One attempt of a request is kept, the newest."""

    def __init__(self, *, retention_s: float, max_bytes: int) -> None:
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._requests: dict[str, Retained] = {}
        self._ended: dict[str, None] = {}  # in order of their end
        self._calls: dict[tuple[str, str], str] = {}  # tenant and key of a call to the key of its request
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def keys(self, request_id: str) -> list[str]:
        """Of the requests of that id, of whatever tenant; for services that do not say whose it is."""
        end = f"/{request_id}"
        return [key for key in self._requests if key.endswith(end)]

    def attempt(self, key: str) -> int | None:
        """The attempt that is known of a request; None: it is unknown (by now)."""
        retained = self._requests.get(key)
        return None if retained is None else retained.attempt

    def kept(self, key: str) -> Retained | None:
        """All that is kept of a request; to be read only."""
        return self._requests.get(key)

    def open(
        self, key: str, attempt: int, first_seq: int = 0, request: GenerateRequest | None = None
    ) -> None:
        """Begins to keep an attempt; frames of an earlier one are forgotten.

        A request with a note is kept as well, for those who attach to it.
        """
        self._forget(key)
        retained = self._requests[key] = Retained(attempt, first_seq)
        if request is not None and request.note:
            retained.request = request
            retained.num_bytes = estimate_request_bytes(request)
            self.num_bytes += retained.num_bytes
            if request.call_key:
                self._calls[request.tenant, request.call_key] = key

    def of_call(self, tenant: str, call_key: str) -> str | None:
        """The key of the request that a tenant's call was made with last, unless that failed."""
        key = self._calls.get((tenant, call_key))
        return None if key is None or self._requests[key].failed else key

    def give(self, key: str, request: GenerateRequest, reader: str) -> None:
        """Gives a kept request to another caller; only its new attempt counts from here on."""
        retained = self._requests[key]
        retained.request, retained.attempt, retained.reader = request, request.attempt, reader

    def add(self, key: str, frame: AnyFrame, now: float) -> bytes:
        """Keeps a frame of an open request; returns it encoded. `Done` and `Failed` start its retention."""
        retained = self._requests[key]
        data = codec.encode(frame)
        retained.frames.append(data)
        size = FRAME_BYTES + len(data)
        retained.num_bytes += size
        self.num_bytes += size
        if isinstance(frame, Done | Failed):
            retained.ended_at = now
            retained.failed = isinstance(frame, Failed)
            retained.cancelled = isinstance(frame, Failed) and frame.code == Cancelled.code
            self._ended[key] = None
        if self.num_bytes > self._max_bytes:
            self._make_room()
        return data

    def expire(self, now: float) -> None:
        """Forgets the requests that ended more than the retention time ago."""
        while self._ended:
            key = next(iter(self._ended))
            ended_at = self._requests[key].ended_at
            if ended_at is None or ended_at + self._retention_s > now:
                return
            self._forget(key)

    def resend(self, key: str, attempt: int, from_seq: int, max_bytes: int = 512 * 1024) -> ResendReply:
        """The frames from a number on, as many as fit; unknown if they, or the attempt, are not kept.

        Frames that were sent before the request changed hands are of the new attempt here.
        """
        retained = self._requests.get(key)
        if retained is None:
            return ResendReply(known=False)
        if retained.attempt != attempt or from_seq < retained.first_seq:
            return ResendReply(known=False, attempt=retained.attempt)
        fitting: list[bytes] = []
        for data in retained.frames[from_seq - retained.first_seq :]:
            max_bytes -= FRAME_BYTES + len(data)
            if max_bytes < 0 and fitting:
                break
            fitting.append(data)
        kept = codec.decode(codec.encode_batch(fitting), FrameBatch).frames
        frames = [msgspec.structs.replace(frame, attempt=attempt) for frame in kept]
        return ResendReply(known=True, next_seq=retained.next_seq, frames=frames, attempt=attempt)

    def _forget(self, key: str) -> None:
        retained = self._requests.pop(key, None)
        if retained is not None:
            self.num_bytes -= retained.num_bytes
            self._ended.pop(key, None)
            request = retained.request
            if request is not None and self._calls.get((request.tenant, request.call_key)) == key:
                del self._calls[request.tenant, request.call_key]

    def _make_room(self) -> None:
        """Forgets what ended first; if nothing did, the older half of the largest request's frames."""
        while self.num_bytes > self._max_bytes and self._ended:
            self._forget(next(iter(self._ended)))
        if self.num_bytes > self._max_bytes and self._requests:
            largest = max(self._requests.values(), key=lambda retained: retained.num_bytes)
            dropped = largest.frames[: (len(largest.frames) + 1) // 2]
            del largest.frames[: len(dropped)]
            largest.first_seq += len(dropped)
            freed = sum(FRAME_BYTES + len(data) for data in dropped)
            largest.num_bytes -= freed
            self.num_bytes -= freed
