"""What a guest cannot do, as heartbeats and refusals name it."""

from typing import get_args

from services.worker.guests.port import Ability, GuestFacts
from shared.guests.needs import FORMS, REBUILT_STATE
from shared.messages import GuestCard

# The guest engine hands none of these on, whatever the guest says of itself.
_NOT_CARRIED: frozenset[str] = frozenset({"adapters", "embeddings", "optional_calls", "prompt_logprobs"})
_ALL: frozenset[str] = frozenset(get_args(Ability))


def guest_card(facts: GuestFacts, *, reasons: bool = False) -> GuestCard:
    """Returns the guest's name and what it lacks, for heartbeats and refusals.

    Args:
        reasons: The model's answers may begin with reasoning. A guest's grammar would hold from its first
            token on.
    """
    lacks = (_ALL - facts.abilities) | _NOT_CARRIED | {REBUILT_STATE} | (FORMS if reasons else frozenset())
    return GuestCard(name=facts.name, lacks=sorted(lacks))


def can_do(card: GuestCard) -> list[str]:
    """Returns the abilities that a guest has, for `ryz status`."""
    return sorted(_ALL.difference(card.lacks))
