"""Measures how evenly work is spread over groups, and by how much each is ahead of its fair share. Pure."""

from collections.abc import Callable, Collection, Mapping

from services.router.domain.groups.group import Group

_NOTHING = 1e-6
RATE_HALF_LIFE_S = 2.0  # with which leaders smooth the rate that they report


def imbalance(counts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The largest excess of a group over its fair share: `max_i(c_i / (C w_i / W)) - 1`.

    0 is perfectly even; 0.05 means that the busiest group got 5 % more than its share. Groups without a
    weight are left out; without requests, or with a single group, the answer is 0.
    """
    total = sum((counts.get(name, 0.0) for name in weights), 0.0)
    weight = sum(weights.values(), 0.0)
    if total <= 0.0:
        return 0.0
    return max(counts.get(name, 0.0) * weight / (total * share) for name, share in weights.items()) - 1.0


def fair_share(counts: Mapping[str, float], weights: Mapping[str, float], weight: float) -> float:
    """The count of a group of that weight if it had as much, by weight, as the others together."""
    total = sum((counts.get(name, 0.0) for name in weights), 0.0)
    return total / sum(weights.values(), 0.0) * weight if weights else 0.0


class DecayingCounts:
    """Requests or tokens per group; those of `half_life_s` seconds ago count half. Bounded by the names."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._counts: dict[str, float] = {}
        self._has_faint = False  # there may be counts that decayed to nothing
        self._as_of = 0.0

    def add(self, name: str, now: float, amount: float = 1.0) -> None:
        """Counts work that was sent to the group."""
        self._decay(now)
        count = self._counts[name] = self._counts.get(name, 0.0) + amount
        self._has_faint |= count <= _NOTHING

    def put(self, name: str, now: float, amount: float) -> None:
        """The group counts as if it had had so much lately."""
        self._decay(now)
        self._counts[name] = amount
        self._has_faint |= amount <= _NOTHING

    def counts(self, now: float) -> dict[str, float]:
        """The counts as of now; those that decayed to nothing are gone."""
        return dict(self.peek(now))

    def peek(self, now: float) -> Mapping[str, float]:
        """The same without a copy, to be read before the counts change."""
        self._decay(now)
        if self._has_faint:
            self._has_faint = False
            self._counts = {name: count for name, count in self._counts.items() if count > _NOTHING}
        return self._counts

    def _decay(self, now: float) -> None:
        elapsed = now - self._as_of
        if elapsed < self._half_life_s / 64:  # fine enough, and cheap when requests come fast
            return
        factor = 0.5 ** (elapsed / self._half_life_s)
        self._counts = {name: count * factor for name, count in self._counts.items()}
        self._has_faint = True
        self._as_of = now


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
