"""How each party is spread over the groups, and who may ask for a slot of a full one. Pure.

The credits are the second deficit of D2LPM (Cao et al., arXiv 2501.14312): what is sent for a party to a
group is taken from its credit there, and when it has none at any of the groups, each gets a quantum. A
session stays where its KV is while its party has credit there; a group that lets requests wait gets no more
of a party than its part and a quantum before the others have had as much. Tokens whose KV the group has cost
nothing. While one party is there, nothing is counted against it.

A full group gets requests of other tenants, because one of these may hold its slots. Routers do not hear how
requests end, so they do not know which tenant holds the slots. Its leader does, and displaces requests of the
tenant with most slots. A refused request costs the leader about as much as another one, so each tenant may
ask for some slots a second, times its weight.
"""

from collections import OrderedDict
from collections.abc import Collection

from shared.flow.token_bucket import TokenBuckets

QUANTUM = 16_384.0  # tokens of a prompt: some long conversations, so that few sessions move
ANSWER = 2.0  # what a token of an answer costs: routers do not know what groups measure
SEEN_S = 10.0  # how long after its last request another party is taken to be there
MAX_PARTIES = 4096


class PartyCredits:
    """The credits of parties at groups; bounded by the parties that were served last."""

    def __init__(self, quantum: float = QUANTUM) -> None:
        self._quantum = quantum
        self._credits: dict[str, dict[str, float]] = {}
        self._seen: OrderedDict[str, float] = OrderedDict()  # when a party was served last, in that order

    def charge(self, party: str, group: str, tokens: tuple[int, int], now: float) -> None:
        """Counts what was sent for a party to a group.

        Args:
            tokens: Of the prompt, as far as the group computes it, and of the answer.
        """
        credits = self._credits.setdefault(party, {})
        self._seen[party] = now
        self._seen.move_to_end(party)
        credits[group] = credits.get(group, self._quantum) - tokens[0] - ANSWER * max(0, tokens[1])
        if len(self._seen) > MAX_PARTIES:
            oldest, _ = self._seen.popitem(last=False)
            del self._credits[oldest]

    def spent_at(self, party: str, groups: Collection[str], now: float) -> frozenset[str]:
        """Returns at which of the groups the party has no credit, if it has some at another one of them."""
        credits = self._credits.get(party)
        if credits is None or len(groups) < 2 or not self._sees_others(party, now):
            return frozenset()
        quantum = self._quantum
        most = max([credits.get(group, quantum) for group in groups])
        if most <= 0:
            rounds = 1 + int(-most / quantum)
            for group in [*credits]:
                if group in groups:
                    credits[group] = min(quantum, credits[group] + rounds * quantum)
                else:
                    del credits[group]  # it is away, or of another model, and begins anew
        return frozenset([group for group in groups if credits.get(group, quantum) <= 0])

    def _sees_others(self, party: str, now: float) -> bool:
        for other, seen_at in reversed(self._seen.items()):
            if other != party:
                return now - seen_at < SEEN_S
        return False


class Contests:
    """The slots that tenants may ask for at full groups.

    Args:
        slots_per_s: For each tenant of weight 1; 0: a full fleet refuses.
    """

    def __init__(self, slots_per_s: float) -> None:
        self._slots_per_s = slots_per_s
        self._buckets = TokenBuckets()
        self._tenants: set[str] = set()  # two at most: that there are others is all that matters

    def served(self, tenant: str) -> None:
        """A group was given a request of that tenant."""
        if len(self._tenants) < 2:
            self._tenants.add(tenant)

    def allows(self, tenant: str, slots: int, now: float, weight: float = 1.0) -> bool:
        """Whether a request of so many slots may be given to a full group; it is counted then."""
        if not self._slots_per_s or self._tenants <= {tenant}:
            return False  # it would have to displace a request of its own tenant
        return not self._buckets.take_units(tenant, self._slots_per_s * weight, now, slots)
