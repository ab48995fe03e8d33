"""What all requests of a client share: leaders that were heard, and the bound of those that wait.

`HeardLeaders`: remembers when a client last heard from each leader, to tell a false loss from a real one.
Pure.

Routers give a leader up that they do not hear, and on a busy machine they may be wrong. A process that is
gone never speaks again, so one frame of the same instance, long enough after the loss, shows that it was
false.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

from shared.client.generation.commands import GenerationStats
from shared.client.settings import ClientSettings
from shared.codec import encode
from shared.flow.retry_budgets import RetryBudget
from shared.messages import GenerateRequest

FREE_FACTOR = 7
LAST_FRAMES_S = 0.3  # after a loss, frames that the leader sent before it may still arrive
MAX_LEADERS = 1024


class WaitingRequests:
    """Counts the requests that wait and their bytes: of all, of each tenant (or its party) and of each model.

    A tenant, and a model, may have up to seven times as much as is free then. So one that is alone has about
    7/8 of all, each of two that want more has less than half, and one that comes new finds some free. The
    rule is the dynamic threshold of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6/2, 1998).
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._requests = _SharedLimit(max_requests)
        self._bytes = _SharedLimit(max_bytes)

    @property
    def num_requests(self) -> int:
        """How many wait now."""
        return self._requests.taken

    def try_add(self, request: GenerateRequest) -> int:
        """Counts a request that is to wait; returns its bytes, for `remove`, or 0 if it may not wait."""
        parties, size = _parties(request), len(encode(request))
        if not (self._requests.fits(parties, 1) and self._bytes.fits(parties, size)):
            return 0
        self._requests.add(parties, 1)
        self._bytes.add(parties, size)
        return size

    def remove(self, request: GenerateRequest, size: int) -> None:
        """The request does not wait any more."""
        parties = _parties(request)
        self._requests.add(parties, -1)
        self._bytes.add(parties, -size)


class _SharedLimit:
    """A limit of what parties have together, with a part for each that depends on what is free."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[tuple[str, str], int] = {}
        self.taken = 0

    def fits(self, parties: tuple[tuple[str, str], ...], amount: int) -> bool:
        free = self._limit - self.taken
        if amount > free:
            return False
        return all(self._held.get(party, 0) + amount <= FREE_FACTOR * free for party in parties)

    def add(self, parties: tuple[tuple[str, str], ...], amount: int) -> None:
        self.taken += amount
        for party in parties:
            held = self._held.get(party, 0) + amount
            if held:
                self._held[party] = held
            else:
                del self._held[party]


def _parties(request: GenerateRequest) -> tuple[tuple[str, str], ...]:
    return ("tenant", request.party_or_tenant), ("model", request.model)


class HeardLeaders:
    """The leaders whose frames one client has had lately, by instance id."""

    def __init__(self) -> None:
        self._heard_at: OrderedDict[str, float] = OrderedDict()

    def note(self, instance_id: str, now: float) -> None:
        """Frames of that instance have arrived; an empty id is no instance."""
        if not instance_id:
            return
        self._heard_at[instance_id] = now
        if len(self._heard_at) > MAX_LEADERS:
            self._heard_at.popitem(last=False)

    def heard_since(self, instance_id: str, since: float) -> bool:
        """Whether that instance has been heard after `since`."""
        return self._heard_at.get(instance_id, -inf) > since

    def outlived(self, instance_id: str, lost_at: float) -> bool:
        """Whether that instance has sent anything since it was given up at `lost_at`."""
        return self.heard_since(instance_id, lost_at + LAST_FRAMES_S)


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
