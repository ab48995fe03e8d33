"""Keeps the frames that were sent, for callers that missed some.

Frames of a request stay while it runs and for a while after its end. All of them together are bounded by
bytes; surplus goes from the tenant that has most. A request that other callers can attach to is kept with its
frames; its prompt only while it may have to be begun again. Decides what is kept; `FramePublisher` sends.

Frames are kept encoded: half a minute of frames as some hundred thousand objects made each garbage collection
a pause of 0.1 to 0.3 s, in which the leader sent no heartbeat.

`RetainedRequest`: entries of the retransmit buffer, by request and by tenant, and their sizes in bytes.

Bytes of a tenant are summed as they come; those of one request are counted only when they are needed, since a
request gets thousands of frames and is forgotten once.
"""

import math
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from shared import codec
from shared.errors import Cancelled
from shared.messages import AnyFrame, Done, Failed, FrameBatch, GenerateRequest, ResendReply, Sampling

FRAME_BYTES = 48  # around a frame
REQUEST_BYTES = 600
MESSAGE_BYTES = 120
BIAS_BYTES = 100
_BYTES = attrgetter("num_bytes")


@dataclass(slots=True)
class RetainedRequest:
    """The frames kept of one request, and the request itself.

    Attributes:
        attempt: The attempt that is kept.
        first_seq: Number of `frames[0]`.
        request: With the attempt that counts; without its prompt once it has ended. None if no other caller
            can attach to it.
        request_bytes: Of `request`, estimated.
        reader: Reply subject of the caller that attached last.
        frames: Encoded, in order.
        ended_at: When it ended, in seconds; inf while it runs.
        cancelled: Whether its caller has cancelled it.
        failed: Whether it has failed.
    """

    attempt: int
    first_seq: int
    account: "TenantFrames"
    request: GenerateRequest | None = None
    request_bytes: int = 0
    reader: str = ""
    frames: list[bytes] = field(default_factory=list)
    ended_at: float = math.inf
    cancelled: bool = False
    failed: bool = False

    @property
    def next_seq(self) -> int:
        """The number of the next frame."""
        return self.first_seq + len(self.frames)

    @property
    def num_bytes(self) -> int:
        """Bytes of the request and its frames, counted at each call."""
        return self.request_bytes + FRAME_BYTES * len(self.frames) + sum(map(len, self.frames))

    def offer(self, tenant: str) -> GenerateRequest | None:
        """Returns the request if another caller of that tenant may attach to it; never a cancelled one."""
        request = self.request
        return None if request is None or request.tenant != tenant or self.cancelled else request


@dataclass(slots=True)
class TenantFrames:
    """The requests kept for one tenant; `ended` is in the order of their ends."""

    num_bytes: int = 0
    running: dict[str, RetainedRequest] = field(default_factory=dict)
    ended: dict[str, RetainedRequest] = field(default_factory=dict)


def estimate_request_bytes(request: GenerateRequest) -> int:
    """Returns about how many bytes a request takes in memory."""
    size = (
        REQUEST_BYTES + len(request.note) + len(request.prompt_token_ids or b"") + len(request.prompt or "")
    )
    size += sum(MESSAGE_BYTES + len(message.content) for message in request.messages or ())
    size += BIAS_BYTES * len(request.sampling.logit_bias) + sum(map(len, request.sampling.stop))
    return size + sum(map(len, request.resume.token_ids if request.resume else ()))


def without_prompt(request: GenerateRequest) -> GenerateRequest:
    """Returns the request without what is needed to begin its answer again."""
    sampling, resume = request.sampling, request.resume
    return replace(
        request,
        messages=None,
        prompt=None,
        prompt_token_ids=None,
        sampling=Sampling(n=sampling.n, logprobs=sampling.logprobs, prompt_logprobs=sampling.prompt_logprobs),
        resume=None if resume is None else replace(resume, token_ids=[]),
    )


class RetransmitBuffer:
    """Sent frames by `request_key`; of a request only the newest attempt is kept."""

    def __init__(self, *, retention_s: float, max_bytes: int) -> None:
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._requests: dict[str, RetainedRequest] = {}
        self._accounts: dict[str, TenantFrames] = {}  # by party
        self._calls: dict[tuple[str, str], str] = {}  # tenant and key of a call to the key of its request
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def keys(self, request_id: str) -> list[str]:
        """Returns the keys of the requests of that id, of all tenants; for services that name no tenant."""
        end = f"/{request_id}"
        return [key for key in self._requests if key.endswith(end)]

    def attempt(self, key: str) -> int | None:
        """Returns the attempt that is kept of a request; None if it is unknown."""
        retained = self._requests.get(key)
        return None if retained is None else retained.attempt

    def kept(self, key: str) -> RetainedRequest | None:
        """Returns what is kept of a request; read only."""
        return self._requests.get(key)

    def open_attempt(
        self, key: str, attempt: int, first_seq: int = 0, request: GenerateRequest | None = None
    ) -> None:
        """Begins to keep an attempt; frames of an earlier one are forgotten.

        A request with a note is kept as well, for callers that attach to it.
        """
        self._forget(key)
        account = self._accounts.setdefault(
            "" if request is None else request.party_or_tenant, TenantFrames()
        )
        retained = self._requests[key] = account.running[key] = RetainedRequest(attempt, first_seq, account)
        if request is not None and request.note:
            self._keep(retained, request)
            if request.call_key:
                self._calls[request.tenant, request.call_key] = key

    def key_of_call(self, tenant: str, call_key: str) -> str | None:
        """Returns the key of the newest request of a tenant's call, unless that failed."""
        key = self._calls.get((tenant, call_key))
        return None if key is None or self._requests[key].failed else key

    def give_to_reader(self, key: str, request: GenerateRequest, reader: str, now: float) -> None:
        """Gives a kept request to another caller; only its new attempt is valid from here on.

        Of a request that has ended, the caller has the whole retention time to ask for the frames.
        """
        retained = self._requests[key]
        retained.request, retained.attempt, retained.reader = request, request.attempt, reader
        ended = retained.account.ended
        if key in ended:
            retained.ended_at = now
            ended[key] = ended.pop(key)

    def add_frame(self, key: str, frame: AnyFrame, now: float) -> bytes:
        """Keeps a frame of an open request; returns it encoded. `Done` and `Failed` start its retention."""
        retained = self._requests[key]
        data = codec.encode(frame)
        retained.frames.append(data)
        size = FRAME_BYTES + len(data)
        retained.account.num_bytes += size
        self.num_bytes += size
        if isinstance(frame, Done | Failed):
            retained.failed = isinstance(frame, Failed)
            retained.cancelled = isinstance(frame, Failed) and frame.code == Cancelled.code
            self._end(key, retained, now, whole=isinstance(frame, Failed) and frame.resumable)
        if self.num_bytes > self._max_bytes:
            self._make_room()
        return data

    def abandon_attempt(self, key: str, now: float) -> None:
        """Ends an attempt without a last frame; no other caller can attach to it."""
        retained = self._requests.get(key)
        if retained is not None and key in retained.account.running:
            retained.cancelled = True
            self._end(key, retained, now)

    def forget_expired(self, now: float) -> None:
        """Forgets the requests that ended more than the retention time ago."""
        for tenant, account in tuple(self._accounts.items()):
            while account.ended:
                key, first = next(iter(account.ended.items()))
                if first.ended_at + self._retention_s > now:
                    break
                self._forget(key)
            if not account.running and not account.ended:
                del self._accounts[tenant]

    def frames_from(self, key: str, attempt: int, from_seq: int, max_bytes: int = 512 * 1024) -> ResendReply:
        """Returns the frames from a number on, as many as fit.

        Frames that were sent before the request was given to another caller get the new attempt's number.

        Args:
            from_seq: Number of the first frame.
            max_bytes: Of all frames; one is always returned.

        Returns:
            The frames; `known` is false if they, or the attempt, are not kept.
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

    def _end(self, key: str, retained: RetainedRequest, now: float, *, whole: bool = False) -> None:
        """Begins the retention; with `whole` the request can go on elsewhere and keeps its prompt."""
        retained.ended_at = now
        account = retained.account
        account.ended[key] = account.running.pop(key)
        if retained.request is not None and not whole:
            self._keep(retained, without_prompt(retained.request))

    def _keep(self, retained: RetainedRequest, request: GenerateRequest) -> None:
        retained.request = request
        self._resize(retained, estimate_request_bytes(request))

    def _resize(self, retained: RetainedRequest, request_bytes: int) -> None:
        more = request_bytes - retained.request_bytes
        retained.request_bytes = request_bytes
        retained.account.num_bytes += more
        self.num_bytes += more

    def _forget(self, key: str) -> None:
        retained = self._requests.pop(key, None)
        if retained is None:
            return
        account, size = retained.account, retained.num_bytes
        account.running.pop(key, None)
        account.ended.pop(key, None)
        account.num_bytes -= size
        self.num_bytes -= size
        self._forget_call(key, retained)

    def _forget_call(self, key: str, retained: RetainedRequest) -> None:
        request = retained.request
        if request is not None and self._calls.get((request.tenant, request.call_key)) == key:
            del self._calls[request.tenant, request.call_key]

    def _make_room(self) -> None:
        """Frees bytes of the tenant that has most: what ended first, else of its largest request."""
        while self.num_bytes > self._max_bytes:
            account = max(self._accounts.values(), key=_BYTES)
            if account.ended:
                self._forget(next(iter(account.ended)))
            else:
                self._shorten(max(account.running, key=lambda key: account.running[key].num_bytes))

    def _shorten(self, key: str) -> None:
        """Drops a part of a running request: its prompt or the older half of its frames, whichever is more.

        Without the prompt another caller can read it, but not resume it on another group. Without both no
        other caller can attach to it.
        """
        retained = self._requests[key]
        bare = None if retained.request is None else without_prompt(retained.request)
        prompt_bytes = 0 if bare is None else retained.request_bytes - estimate_request_bytes(bare)
        dropped = retained.frames[: (len(retained.frames) + 1) // 2]
        freed = FRAME_BYTES * len(dropped) + sum(map(len, dropped))
        if bare is not None and prompt_bytes > freed:
            self._keep(retained, bare)
        elif dropped:
            del retained.frames[: len(dropped)]
            retained.first_seq += len(dropped)
            retained.account.num_bytes -= freed
            self.num_bytes -= freed
        else:
            self._forget_call(key, retained)
            retained.request = None
            self._resize(retained, 0)
