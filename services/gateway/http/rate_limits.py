"""Limits the rate of a tenant's requests. Pure: the time is an argument.

Refusals say when a retry may succeed. How much may be under way at once is decided in `quota.py`.
"""

from dataclasses import dataclass

from shared.errors import InvalidRequest, RateLimited


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class RateLimiter:
    """A token bucket for each tenant: `rate` requests a second in the long run, `burst` at once.

    A rate of 0 means no limit. There are only as many buckets as configured tenants.
    """

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: dict[str, _Bucket] = {}

    def headers(self, tenant: str, now_s: float) -> list[tuple[bytes, bytes]]:
        """Headers that tell a tenant's limit, what is left, and when all of it is back; none without a limit.

        Args:
            tenant: Whose bucket.
            now_s: Seconds on a clock that only grows.
        """
        if self._rate <= 0:
            return []
        bucket = self._buckets.get(tenant)
        left = self._burst
        if bucket is not None:
            left = min(self._burst, bucket.tokens + max(0.0, now_s - bucket.at_s) * self._rate)
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self._burst),
            (b"x-ratelimit-remaining-requests", b"%d" % left),
            (b"x-ratelimit-reset-requests", b"%.3fs" % ((self._burst - left) / self._rate)),
        ]

    def take_tokens(self, tenant: str, now_s: float, cost: int = 1) -> None:
        """Takes tokens from the tenant's bucket.

        Args:
            tenant: Whose bucket.
            now_s: Seconds on a clock that only grows.
            cost: Tokens to take.

        Raises:
            RateLimited: There are too few; carries the seconds until there are enough. None is taken.
            InvalidRequest: The bucket never holds as many.
        """
        if self._rate <= 0:
            return
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = _Bucket(self._burst, now_s)
        elapsed_s = max(0.0, now_s - bucket.at_s)
        bucket.tokens = min(self._burst, bucket.tokens + elapsed_s * self._rate)
        bucket.at_s = max(now_s, bucket.at_s)
        if cost > self._burst:
            raise InvalidRequest(
                f"the request counts as {cost}, but tenant {tenant!r} may send {self._burst:.0f} at once"
            )
        if bucket.tokens < cost:
            wait_s = (cost - bucket.tokens) / self._rate
            raise RateLimited(
                f"tenant {tenant!r} is over its limit of {self._rate:g} requests a second; "
                f"retry in {wait_s:.2f} s",
                reason="tenant_rate",
                retry_after_s=wait_s,
            )
        bucket.tokens -= cost
