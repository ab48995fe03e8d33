"""Bounds the size of an answer before it is generated. Pure."""

from collections.abc import Sequence

from shared.errors import InvalidRequest
from shared.messages import GenerateRequest


def check_cost(requests: Sequence[GenerateRequest], limit: int) -> None:
    """Checks how many entries the answer may have; an entry is a token or a log probability.

    A call without `max_tokens` passes: the model's context bounds it, and unread bytes have their own limit.

    Raises:
        InvalidRequest: The answer may have more than `limit` entries; names the fields.
    """
    entries = sum(map(_entries, requests))
    if entries <= limit:
        return
    sampling = requests[0].sampling
    prompts = f"{len(requests)} prompts x " if len(requests) > 1 else ""
    each = f" x {entries_of_token(sampling.logprobs)} (`logprobs`)" if sampling.logprobs >= 0 else ""
    raise InvalidRequest(
        f"the answer may have {prompts}{sampling.n} (`n`) x {sampling.max_tokens} (`max_tokens`){each} = "
        f"{entries} entries, and {limit} are allowed; ask for less",
        param="max_tokens",
    )


def entries_of_token(logprobs: int) -> int:
    """Entries of one token: itself, its log probability, and that of each alternative."""
    return 2 + logprobs if logprobs >= 0 else 1


def _entries(request: GenerateRequest) -> int:
    sampling = request.sampling
    return sampling.n * sampling.max_tokens * entries_of_token(sampling.logprobs)
