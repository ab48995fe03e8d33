"""Decides which part is at fault for a failed request. Only the group's own failures count against the group.

Only this table decides it; `docs/operations.md` shows it to operators. `RequestCounts`
decides about failures whose owner is unclear, by a request of the group itself.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from shared.errors import RyzError

# content: what the request says. caller: it left, was late, or contradicts its own earlier requests.
# store: kvstate or Redis. group: its engine. other: load, drains, limits of tenants. unclear: see above.
Owner = Literal["content", "caller", "store", "group", "other", "unclear"]

GRAMMAR: Final = "grammar"  # an unexpected error while a grammar was followed
PROMPT: Final = "prompt"  # an unexpected error before the first step: template, tokenizer, grammar, history
ANSWER: Final = "answer"  # an unexpected error while text, parts or frames were made of tokens
GUEST: Final = "guest"  # an engine of others ended a sequence that was to go on
NOT_FINITE: Final = "not_finite"  # the engine computed logits that are no numbers
OWNERS: Mapping[str, Owner] = {
    "invalid_request": "content",
    "context_length_exceeded": "content",
    "request_too_large": "content",
    "model_not_found": "content",
    "poison": "content",  # its two engines were counted when they died
    "session_not_found": "caller",
    "response_not_found": "caller",
    "file_not_found": "caller",
    "batch_not_found": "caller",
    "account_not_found": "caller",
    "conflict": "caller",
    "cancelled": "caller",
    "deadline_exceeded": "caller",
    "rate_limited": "other",
    "insufficient_quota": "other",
    "overloaded": "other",
    "unavailable": "store",
    "group_lost": "group",  # counted with the reason `guest` alone: the group's state shows the other losses
    "internal": "unclear",
}
_ALL: tuple[Owner, ...] = get_args(Owner)


def owner_of(error: RyzError) -> Owner:
    """Returns whose fault an error is."""
    return OWNERS.get(error.code, "unclear")


def all_owners() -> tuple[Owner, ...]:
    """Returns all owners, for metrics."""
    return _ALL
