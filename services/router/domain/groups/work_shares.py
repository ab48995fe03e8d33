"""How much work each group had lately, and by how much it is ahead of its fair share. Pure."""

from collections.abc import Callable, Collection, Mapping

from services.router.domain.groups.balance import DecayingCounts, fair_share
from services.router.domain.groups.group import Group

RATE_HALF_LIFE_S = 2.0  # with which leaders smooth the rate that they report


class WorkShares:
    """Tokens of each group that fade with time. `now` is monotonic seconds everywhere.

    Args:
        half_life_s: Computed tokens so long ago count half.

    Attributes:
        computed: Tokens by group as the groups report them, for the requests of all routers.
        given: Estimated tokens of the requests that all routers sent. What groups report is right but late by
            the smoothing of their rate; estimates that fade as fast make up for it, and so do their errors.
    """

    def __init__(self, half_life_s: float) -> None:
        self.computed = DecayingCounts(half_life_s)
        self.given = DecayingCounts(RATE_HALF_LIFE_S)

    def give_fair_share(self, group: Group, others: Mapping[str, float], now: float) -> None:
        """Counts for a group as much work as its weight among the others' weights stands for."""
        for counts in (self.given, self.computed):
            counts.put(group.name, now, fair_share(counts.counts(now), others, group.heartbeat.weight))

    def leads(self, groups: Collection[Group], now: float) -> Callable[[Group], float]:
        """Returns the function from one of the groups to its tokens beyond its fair share of their work."""
        computed, given = self.computed.peek(now), self.given.peek(now)
        work: dict[str, float] = {}
        total = weight = 0.0
        for group in groups:
            name = group.name
            amount = work[name] = computed.get(name, 0.0) + given.get(name, 0.0)
            total += amount
            weight += group.weight
        fair = total / weight if weight else 0.0

        def lead(group: Group) -> float:
            return work[group.name] - fair * group.weight

        return lead
