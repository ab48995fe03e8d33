"""Makes the call of a text completion from its body and headers. Pure: ids and seeds are arguments."""

from collections.abc import Sequence

import msgspec

from services.gateway.admission.request_headers import given_session
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import count_once, priority_of, seed_of, with_conditions
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.fields.completion_call import call_of_body, judge_body
from services.gateway.formats.fields.sampling import (
    Origin,
    delivery_of,
    field_names_of,
    sampling_of,
    structure_of,
)
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


def completion_call(body: CompletionRequest, origin: CallOrigin, *, max_prompts: int) -> Call:
    """Makes the call of a text completion, of a session only if the caller names one; see `chat_call`."""
    count, request_id = len(body.prompt), origin.request_id
    if count > max_prompts:
        raise InvalidRequest(f"`prompt` may have {max_prompts} prompts, got {count}", param="prompt")
    unknown, left_out = judge_body(body)
    session = given_session(origin.headers, body.session_id)
    # here a session only decides the route
    with_conditions(None, origin.headers, body.session_must_exist, [])
    request_ids = [request_id] if count == 1 else [f"{request_id}-{index}" for index in range(count)]
    from_call = Origin(request_id, origin.tenant, seed_of(origin.once), session)
    requests = completion_requests(body, from_call, request_ids)
    if root := origin.root_of(body.prompt_cache_key, body.user):
        requests = [msgspec.structs.replace(one, route_key=root) for one in requests]
    if count == 1:
        requests = [count_once(requests[0], origin.once)]
    return call_of_body(
        "completion",
        body,
        origin,
        requests,
        unknown=unknown,
        left_out=left_out,
        field_names=field_names_of(body),
    )
