"""How many requests a second each user outside may make: a token bucket per user. Pure."""

from services.router.domain.expiring import ExpiringMap

BURST_S = 2.0  # an idle user may make the requests of so many seconds at once
_MAX_USERS = 4096
_FORGET_S = 60.0  # longer than a bucket takes to fill


class UserRates:
    """Bounded in users. per_s: 0: no limit."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._buckets: ExpiringMap[str, tuple[float, float]] = ExpiringMap(
            ttl_s=_FORGET_S, max_entries=_MAX_USERS
        )

    def wait_s(self, user: str, now: float) -> float:
        """0: the request may pass, and is counted. Else the seconds until the next one may."""
        if not self._per_s:
            return 0.0
        most = max(1.0, self._per_s * BURST_S)
        tokens, at = self._buckets.get(user, now) or (most, now)
        tokens = min(most, tokens + (now - at) * self._per_s)
        if tokens < 1.0:
            return (1.0 - tokens) / self._per_s
        self._buckets.put(user, (tokens - 1.0, now), now)
        return 0.0
