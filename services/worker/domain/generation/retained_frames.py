"""Entries of the retransmit buffer, by request and by tenant, and their sizes in bytes.

Bytes of a tenant are summed as they come; those of one request are counted only when they are needed, since a
request gets thousands of frames and is forgotten once.
"""

import math
from dataclasses import dataclass, field

from msgspec.structs import replace

from shared.messages import GenerateRequest, Sampling

FRAME_BYTES = 48  # around a frame
REQUEST_BYTES = 600
MESSAGE_BYTES = 120
BIAS_BYTES = 100


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
