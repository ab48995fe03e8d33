"""Translates text completions into `GenerateRequest`s. Pure: ids, seeds and sessions are arguments."""

from collections.abc import Sequence

import msgspec

from services.gateway.answering.intake.priority import priority_of
from services.gateway.formats.fields.sampling import Origin, delivery_of, sampling_of, structure_of
from services.gateway.formats.text.schema import CompletionRequest
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    GenerateRequest,
    Sampling,
)

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for the older route


_SEED_STEP = 0x9E3779B97F4A7C15 % 2**63  # odd, so all prompts of a call have different seeds


def completion_requests(
    body: CompletionRequest, origin: Origin, request_ids: Sequence[str]
) -> list[GenerateRequest]:
    """One generation for each prompt, in their order; `request_ids` has an id for each of them.

    Without a seed in the body each prompt has a seed of its own, so that equal prompts get different answers;
    a seed in the body holds for all of them.

    Raises:
        InvalidRequest: Fields contradict each other; names one.
    """
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("`best_of` is not supported: it must be absent or equal to `n`", param="best_of")
    if len(body.prompt) > 1 and origin.session is not None:
        raise InvalidRequest(
            "a session takes one prompt at a time: send one, or no session id", param="prompt"
        )
    sampling = sampling_of(
        body,
        seed=origin.seed,
        max_tokens=COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=-1 if body.logprobs is None else body.logprobs,
    )
    if body.echo and body.logprobs is not None:
        most = max(sampling.prompt_logprobs, body.logprobs)
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=most)
    delivery, structured = delivery_of(body), structure_of(body)
    return [
        GenerateRequest(
            request_id=request_id,
            model=body.model,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else pack_tokens(prompt),
            sampling=sampling if body.seed is not None else _with_own_seed(sampling, index),
            session=origin.session,
            tenant=origin.tenant,
            delivery=delivery,
            structured=structured,
            truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
            priority=priority_of(body.priority),
            prompt_only=body.max_tokens == 0,
            echo=bool(body.echo),
            prompt_ids=bool(body.return_token_ids),
        )
        for index, (request_id, prompt) in enumerate(zip(request_ids, body.prompt, strict=True))
    ]


def _with_own_seed(sampling: Sampling, index: int) -> Sampling:
    """The sampling of a call's prompt number `index`; the first keeps the call's seed."""
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index * _SEED_STEP) % 2**63)
