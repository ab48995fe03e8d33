"""Reports the tokens of each generation, once: those in its last frame.

The last frame of a generation that the client cancels comes when the client has forgotten it, and is reported
then. A generation that is taken over is reported by the client that gets its last frame. One that had ended
before it was taken over was reported then. One whose group was lost has no last frame: it is not reported.

`seen_usage`: what a client has seen of a generation whose last frame has not come.

Its leader writes the usage of a request when it ends. If the leader is gone, and no other group goes on with
the request, what the client has seen is all that is known. Where the leader writes too, its record is the
more complete one and counts.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from shared.client.generation.generation_stream import GenerationStream
from shared.errors import Cancelled
from shared.messages import AnyFrame, Done, Failed, Usage, UsageRecord
from shared.messages.base import BACKGROUND_PRIORITY
from shared.usage.usage_id import usage_id_of

MAX_WAITING = 4096  # cancelled generations whose last frame has not come


class UsageOwner(NamedTuple):
    """Whose generation it was, and of which model."""

    tenant: str
    key_id: str
    model: str


_NONE = UsageOwner("", "", "")
UsageListener = Callable[[UsageOwner, Usage], None]


class UsageReports:
    """The reports of one client.

    Attributes:
        listener: Is called with the owner and the token counts of a generation; None: no reports.
        record: Takes what was seen of a generation that ended without a last frame, for the ledger: its group
            may be gone, with what it knew. None: it is not recorded.
    """

    def __init__(self) -> None:
        self.listener: UsageListener | None = None
        self.record: Callable[[UsageRecord], None] | None = None
        self._waiting: OrderedDict[str, tuple[UsageOwner, int]] = OrderedDict()  # request id: owner, attempt

    def end_stream(self, stream: GenerationStream) -> None:
        """A stream has ended, and its client forgets it."""
        if self.record is not None and (seen := seen_usage(stream)) is not None:
            self.record(seen)
        if self.listener is None or not stream.request.has_prompt:
            return
        request, state = stream.request, stream.state
        owner = UsageOwner(request.tenant, request.key_id, request.model)
        if state.answer.last_usage is not None:
            self.listener(owner, state.answer.last_usage)
        elif state.lifecycle.was_cancelled:
            self._waiting[stream.request_id] = owner, state.attempts.number
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)

    def drop_request(self, request_id: str) -> None:
        """The generation goes on, for another stream of this client."""
        self._waiting.pop(request_id, None)

    def take_late_frame(self, frame: AnyFrame) -> None:
        """A frame has come for a request that the client has no more."""
        if self.listener is None or not isinstance(frame, Done | Failed) or frame.usage is None:
            return
        owner, attempt = self._waiting.get(frame.request_id, (_NONE, frame.attempt + 1))
        if frame.attempt >= attempt:
            del self._waiting[frame.request_id]
            self.listener(owner, frame.usage)


def seen_usage(stream: GenerationStream) -> UsageRecord | None:
    """Returns the record of a stream that has ended; None if it had its last frame, or nothing of an answer.

    The prompt's tokens are known of streams only: the first tokens bring them.
    """
    request, state = stream.request, stream.state
    tokens, prompt = state.attempts.num_tokens, state.answer.prompt_usage
    if state.answer.last_usage is not None or not state.finished or not tokens:
        return None
    return UsageRecord(
        request_id=usage_id_of(request),
        tenant=request.tenant,
        key_id=request.key_id,
        model=request.model,
        prompt_tokens=prompt.prompt_tokens or len(request.prompt_token_ids or b"") // 4,
        cached_tokens=prompt.cached_tokens,
        completion_tokens=tokens,
        ended_ms=int(time.time() * 1000),
        outcome="cut" if isinstance(state.error, Cancelled) else "failed",
        batch=request.priority == BACKGROUND_PRIORITY,
    )
