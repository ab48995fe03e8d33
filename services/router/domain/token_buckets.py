"""How many requests a second each user outside, or each tenant, may make: token buckets by name. Pure."""

from services.router.domain.expiring import ExpiringMap

BURST_S = 2.0  # an idle user may make the requests of so many seconds at once
_MAX_USERS = 4096
_FORGET_S = 60.0  # longer than a bucket takes to fill
_MOST_DEBT_S = _FORGET_S - BURST_S  # what is owed longer would be forgotten


class TokenBuckets:
    """Bounded in users."""

    def __init__(self) -> None:
        self._buckets: ExpiringMap[str, tuple[float, float]] = ExpiringMap(
            ttl_s=_FORGET_S, max_entries=_MAX_USERS
        )

    def take_tokens(self, user: str, per_s: float, now: float, cost: float = 1.0) -> float:
        """0: the request may pass, and is counted. Else the seconds until it may.

        per_s: of that user; 0: no limit. cost: what it counts, if a burst is not less than that.
        """
        if not per_s:
            return 0.0
        most = max(1.0, per_s * BURST_S)
        tokens, at = self._buckets.get(user, now) or (most, now)
        tokens = min(most, tokens + (now - at) * per_s)
        cost = min(cost, most)
        if tokens < cost:
            return (cost - tokens) / per_s
        self._buckets.put(user, (tokens - cost, now), now)
        return 0.0

    def charge(self, user: str, per_s: float, now: float, cost: float) -> None:
        """A request that passed costs so much more; the next ones wait for it."""
        if not per_s:
            return
        most = max(1.0, per_s * BURST_S)
        tokens, at = self._buckets.get(user, now) or (most, now)
        tokens = min(most, tokens + (now - at) * per_s) - cost
        self._buckets.put(user, (max(tokens, -per_s * _MOST_DEBT_S), now), now)
