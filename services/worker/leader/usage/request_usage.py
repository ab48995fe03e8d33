"""Writes the usage of each request when it ends at this leader, before its last frame is sent.

A request that ends here may go on elsewhere, or run again: its group was given up, its caller repeats it, its
line of a batch is delivered again. Each of these runs writes what it knows, under one id, and the KV state
service counts the most complete record. The counts of a resumed run are those of the whole answer.
"""

import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

from services.worker.domain.generation.generation import Generation
from shared.codec import encode, pack_tokens
from shared.errors import Cancelled, RyzError
from shared.messages import UsageRecord
from shared.messages.base import BACKGROUND_PRIORITY
from shared.usage.usage_id import usage_id_of

Outcome = Literal["done", "cut", "failed"]


class RequestUsage:
    """Makes the records of one leader.

    Args:
        model: What its group serves.
        clock: The monotonic clock of generations.
        put: Takes records for the ledger.
    """

    def __init__(
        self,
        model: str,
        clock: Callable[[], float],
        put: Callable[[UsageRecord], None],
    ) -> None:
        self._model = model
        self._clock = clock
        self._put = put

    def write(self, generation: Generation, error: RyzError | None = None) -> None:
        """Writes the record of a request that ends; one that was never computed has used nothing."""
        if error is not None and not generation.computing_at and not generation.has_all_tokens:
            return
        self._put(self.record(generation, _outcome(error)))

    def record(self, generation: Generation, outcome: Outcome) -> UsageRecord:
        """Returns the record of a request as it is now."""
        request, usage, adapter = generation.request, generation.usage, generation.adapter
        now = self._clock()
        began = generation.computing_at or now
        embeds = request.embedding is not None
        return UsageRecord(
            request_id=_id_of(generation),
            tenant=request.tenant,
            key_id=request.key_id,
            model=self._model if adapter is None else adapter.model,
            prompt_tokens=0 if embeds else usage.prompt_tokens,
            cached_tokens=0 if embeds else usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            embedded_tokens=usage.prompt_tokens if embeds else 0,
            queue_ms=round(max(0.0, began - generation.arrived) * 1000),
            compute_ms=round((now - began) * 1000),
            ended_ms=int(time.time() * 1000),
            outcome=outcome,
            batch=request.priority == BACKGROUND_PRIORITY,
        )


def _id_of(generation: Generation) -> str:
    """Returns the id under which all runs of a request count once.

    A caller outside chooses its request ids, and could use one for many requests. So its ids hold for equal
    requests only: those have the same answer, since tokens follow from the prompt and the sampling.
    """
    request = generation.request
    if not generation.outside:
        return usage_id_of(request)
    sequence = generation.choices[0].sequence
    made = blake2b(pack_tokens(sequence.tokens[: sequence.prompt_len]), digest_size=16)
    for part in (request.sampling, request.tools, request.structured, request.embedding, generation.adapter):
        made.update(b"-" if part is None else encode(part))
    return f"{request.request_id[:31]}-{made.hexdigest()}"


def _outcome(error: RyzError | None) -> Outcome:
    if error is None:
        return "done"
    return "cut" if isinstance(error, Cancelled) else "failed"
