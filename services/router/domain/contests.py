"""Which requests go to a full group all the same, because another tenant may hold its places. Pure.

Routers send requests and do not hear how they end, so they know neither who holds the places of a group nor
who has less than a share of them. Its leader does, and lets the tenant that has most give way. A request that
it refuses costs it about as much as another one, so each tenant has some places a second to ask for.
"""

from services.router.domain.token_buckets import TokenBuckets


class Contests:
    """places_per_s: of each tenant; 0: none, a full fleet refuses."""

    def __init__(self, places_per_s: float) -> None:
        self._places_per_s = places_per_s
        self._buckets = TokenBuckets()
        self._tenants: set[str] = set()  # two at most: that there are others is all that matters

    def served(self, tenant: str) -> None:
        """A group was given a request of that tenant."""
        if len(self._tenants) < 2:
            self._tenants.add(tenant)

    def allows(self, tenant: str, places: int, now: float) -> bool:
        """Whether a request of so many places may be given to a full group; it is counted then."""
        if not self._places_per_s or self._tenants <= {tenant}:
            return False  # its own tenant would have to give way
        return not self._buckets.take_tokens(tenant, self._places_per_s, now, places)
