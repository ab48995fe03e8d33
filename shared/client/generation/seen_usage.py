"""What a client has seen of a generation whose last frame has not come.

Its leader writes the usage of a request when it ends. If the leader is gone, and no other group goes on with
the request, what the client has seen is all that is known. Where the leader writes too, its record is the
more complete one and counts.
"""

import time

from shared.client.generation.generation_stream import GenerationStream
from shared.errors import Cancelled
from shared.messages import UsageRecord
from shared.messages.base import BACKGROUND_PRIORITY
from shared.usage.usage_id import usage_id_of


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
