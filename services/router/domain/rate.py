"""How many requests a second each user outside may make: a token bucket per user. Pure."""

from services.router.domain.expiring import ExpiringMap

BURST_S = 2.0  # an idle user may make the requests of so many seconds at once
_MAX_USERS = 4096
_FORGET_S = 60.0  # longer than a bucket takes to fill


class UserRates:
    """Bounded in users."""

    def __init__(self) -> None:
        self._buckets: ExpiringMap[str, tuple[float, float]] = ExpiringMap(
            ttl_s=_FORGET_S, max_entries=_MAX_USERS
        )

    def wait_s(self, user: str, per_s: float, now: float) -> float:
        """0: the request may pass, and is counted. Else the seconds until the next one may.

        per_s: of that user; 0: no limit.
        """
        if not per_s:
            return 0.0
        most = max(1.0, per_s * BURST_S)
        tokens, at = self._buckets.get(user, now) or (most, now)
        tokens = min(most, tokens + (now - at) * per_s)
        if tokens < 1.0:
            return (1.0 - tokens) / per_s
        self._buckets.put(user, (tokens - 1.0, now), now)
        return 0.0
