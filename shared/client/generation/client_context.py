"""What all requests of a client share."""

from dataclasses import dataclass, field

from shared.client.generation.commands import GenerationStats
from shared.client.generation.heard_leaders import HeardLeaders
from shared.client.generation.waiting_requests import WaitingRequests
from shared.client.settings import ClientSettings
from shared.flow.retry_budgets import RetryBudget


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What all requests of a client share.

    Attributes:
        budget: Limits how many requests are published again in a second.
        waiting: The requests that no group has begun, and that wait.
    """

    settings: ClientSettings
    stats: GenerationStats
    budget: RetryBudget
    waiting: WaitingRequests
    heard: HeardLeaders = field(default_factory=HeardLeaders)

    @classmethod
    def make(cls, settings: ClientSettings, stats: GenerationStats) -> "ClientContext":
        """Makes the context of a client that has no request yet."""
        constants = settings.constants
        budget = RetryBudget(constants.retries_per_s)
        return cls(
            settings, stats, budget, WaitingRequests(settings.max_waiting, constants.max_waiting_bytes)
        )
