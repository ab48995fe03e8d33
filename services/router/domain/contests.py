"""Decides which requests go to a full group, because another tenant may hold its slots. Pure.

Routers do not hear how requests end, so they do not know which tenant holds the slots of a group. Its leader
does, and displaces requests of the tenant with most slots. A refused request costs the leader about as much
as another one, so each tenant may ask for some slots a second, times its weight.
"""

from shared.flow.token_bucket import TokenBuckets


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
