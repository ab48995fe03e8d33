"""Limits the requests a second of each user outside, or each tenant, by token buckets. Pure."""

from services.router.domain.expiring import ExpiringMap

BURST_S = 2.0  # an idle user may make the requests of so many seconds at once
_MAX_USERS = 4096
_FORGET_S = 60.0  # longer than a bucket takes to fill
_MOST_DEBT_S = _FORGET_S - BURST_S  # what is owed longer would be forgotten


class TokenBuckets:
    """One bucket for each name, bounded in names."""

    def __init__(self) -> None:
        self._buckets: ExpiringMap[str, tuple[float, float]] = ExpiringMap(
            ttl_s=_FORGET_S, max_entries=_MAX_USERS
        )

    def take_tokens(self, user: str, per_s: float, now: float, cost: float = 1.0, sharers: int = 1) -> float:
        """Count a request if it may pass.

        Args:
            user: The user or tenant.
            per_s: Its rate; 0: no limit.
            now: Monotonic seconds.
            cost: What the request counts; a burst at most.
            sharers: So many share the rate, but each lets a whole burst pass.

        Returns:
            0 if the request may pass, else the seconds until it may.
        """
        if not per_s:
            return 0.0
        most = max(1.0, per_s * BURST_S)
        tokens, at = self._buckets.get(user, now) or (most, now)
        tokens = min(most, tokens + (now - at) * per_s / sharers)
        cost = min(cost, most)
        if tokens < cost:
            return (cost - tokens) * sharers / per_s
        self._buckets.put(user, (tokens - cost, now), now)
        return 0.0

    def charge(self, user: str, per_s: float, now: float, cost: float, sharers: int = 1) -> None:
        """Add a cost to a request that has passed; the next ones wait for it."""
        if not per_s:
            return
        most = max(1.0, per_s * BURST_S)
        tokens, at = self._buckets.get(user, now) or (most, now)
        tokens = min(most, tokens + (now - at) * per_s / sharers) - cost
        self._buckets.put(user, (max(tokens, -per_s * _MOST_DEBT_S / sharers), now), now)
