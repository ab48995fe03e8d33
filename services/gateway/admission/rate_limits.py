"""Limits the rates of a tenant's requests and tokens. Pure: the time is an argument.

Refusals say when a retry may succeed. How much may be under way at once is decided in `quota.py`.
"""

from typing import Literal

from shared.errors import InvalidRequest, RateLimited
from shared.flow.token_bucket import TokenBucket


class RateLimiter:
    """A token bucket for each tenant. There are only as many buckets as configured tenants.

    Args:
        rate: Units a second in the long run; 0: no limit.
        burst: Units at once.
        what: The units in words; headers are called so.
    """

    def __init__(self, *, rate: float, burst: int, what: Literal["requests", "tokens"] = "requests") -> None:
        self._rate = rate
        self._burst = float(burst)
        self._what = what
        self._buckets: dict[str, TokenBucket] = {}

    def headers(self, tenant: str, now_s: float) -> list[tuple[bytes, bytes]]:
        """Headers that tell a tenant's limit, what is left, and when all of it is back; none without a limit.

        Args:
            tenant: Whose bucket.
            now_s: Seconds on a clock that only grows.
        """
        if self._rate <= 0:
            return []
        bucket = self._buckets.get(tenant)
        left = self._burst if bucket is None else bucket.units(now_s)
        what = self._what.encode()
        return [
            (b"x-ratelimit-limit-" + what, b"%d" % self._burst),
            (b"x-ratelimit-remaining-" + what, b"%d" % max(0.0, left)),
            (b"x-ratelimit-reset-" + what, b"%.3fs" % ((self._burst - left) / self._rate)),
        ]

    def take_units(self, tenant: str, now_s: float, cost: int = 1) -> None:
        """Takes units from the tenant's bucket.

        Args:
            tenant: Whose bucket.
            now_s: Seconds on a clock that only grows.
            cost: Units to take.

        Raises:
            RateLimited: There are too few; carries the seconds until there are enough. None is taken.
            InvalidRequest: The bucket never holds as many.
        """
        if self._rate <= 0:
            return
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = TokenBucket(self._rate, self._burst, now_s)
        if cost > self._burst:
            raise InvalidRequest(
                f"the request counts as {cost}, but tenant {tenant!r} may send {self._burst:.0f} at once"
            )
        wait_s = bucket.take_units(cost, now_s)
        if wait_s:
            limit = f"{self._rate:g} requests a second"
            if self._what == "tokens":
                limit = f"{60 * self._rate:.0f} tokens a minute"
            raise RateLimited(
                f"tenant {tenant!r} is over its limit of {limit}; retry in {wait_s:.2f} s",
                reason="tenant_rate" if self._what == "requests" else "tenant_tokens",
                retry_after_s=wait_s,
            )

    def take_estimate(self, tenant: str, now_s: float, units: int) -> int:
        """Takes units that are an estimate: no more of them than the bucket ever holds.

        Returns:
            The units that were taken, for `charge` at the end.

        Raises:
            RateLimited: See `take_units`.
        """
        if self._rate <= 0:
            return 0
        estimate = min(units, int(self._burst))
        self.take_units(tenant, now_s, estimate)
        return estimate

    def charge(self, tenant: str, units: int) -> None:
        """Takes units that were used, whatever is left of them; a negative number gives units back."""
        bucket = self._buckets.get(tenant)
        if bucket is not None:
            bucket.charge_units(units, bucket.changed_at)  # what came back since counts later


def tokens_per_minute(limit: int) -> RateLimiter:
    """A limit of tokens; 0: none."""
    return RateLimiter(rate=limit / 60, burst=limit, what="tokens")
