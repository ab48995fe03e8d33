"""How often a tenant may ask, and the end of a body that was refused.

The counting is pure and takes the time as an argument. Refusals say when a retry may succeed. How much may be
under way at once is `quota.py`'s.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from shared.errors import InvalidRequest, RateLimited, RequestTooLarge

LINGER_S = 2.0  # how long a caller that does not do its part is waited for

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientDisconnected(Exception):
    """The caller went away before its request was complete."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class RateLimiter:
    """A token bucket for each tenant: `rate` requests a second in the long run, `burst` at once.

    A rate of 0 means no limit. There are as many buckets as configured tenants, so it needs no bound.
    """

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: dict[str, _Bucket] = {}

    def take(self, tenant: str, now_s: float, cost: int = 1) -> None:
        """Takes `cost` tokens; raises `RateLimited` with the seconds until they are there, and takes none."""
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


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """The announced length of the body; None when it is sent in chunks."""
    value = headers.get(b"content-length", b"")
    return int(value) if value.isdigit() else None


async def discard_body(receive: Receive, limit_s: float = LINGER_S) -> None:
    """Reads the rest of a refused body away, for a caller that still sends and would not see the answer.

    Raises `TimeoutError` when it has not ended after `limit_s`.
    """
    async with asyncio.timeout(limit_s):
        while (await receive()).get("more_body", False):
            pass


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The most that a body may have; `setting` and `reason` are told with a refusal."""

    num_bytes: int
    setting: str = "RYZ_MAX_BODY_BYTES"
    reason: str = "body_size"

    def refusal(self, size: int) -> RequestTooLarge:
        """Of a body that is, or already is, `size` bytes long."""
        return RequestTooLarge(
            f"the body has {size} bytes or more and may have {self.num_bytes} ({self.setting})",
            reason=self.reason,
        )
