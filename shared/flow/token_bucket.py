"""Token buckets: limits of a rate that let an idle caller spend a burst at once. Pure.

`TokenBucket` is one; `TokenBuckets` keeps one for each user or tenant. What a bucket holds is called units
here, since it may be requests, bytes or an answer's tokens. Times are seconds on a clock that only grows.
"""

import math
from collections import OrderedDict

BURST_S = 2.0  # a full bucket has the units of so many seconds
MAX_NAMES = 4096


class TokenBucket:
    """Full at first. Units come back at a rate until there is a burst of them.

    Args:
        per_s: Units that come back in a second; 0: none.
        burst: Units in a full bucket.
        now: When the bucket begins.

    Attributes:
        changed_at: When units were last taken.
    """

    __slots__ = ("_units", "burst", "changed_at", "per_s")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self.per_s = per_s
        self.burst = burst
        self.changed_at = now
        self._units = burst

    def units(self, now: float) -> float:
        """Returns what the bucket has; less than 0 is owed. A time before the last one counts as that one."""
        passed_s = now - self.changed_at
        if passed_s > 0:
            return min(self.burst, self._units + passed_s * self.per_s)
        return min(self.burst, self._units)

    def wait_s(self, units: float, now: float) -> float:
        """Returns the seconds until the bucket has that many units; 0 if it has them now."""
        missing = units - self.units(now)
        if missing <= 0:
            return 0.0
        return missing / self.per_s if self.per_s else math.inf

    def take_units(self, units: float, now: float) -> float:
        """Takes all of the units, or none.

        Returns:
            0 if they were taken, else the seconds until the bucket has that many.
        """
        left = self.units(now)
        if left < units:
            return self.wait_s(units, now)
        self._set(left - units, now)
        return 0.0

    def charge_units(self, units: float, now: float, most_debt: float = math.inf) -> None:
        """Takes units that were used already, whatever is left; a negative number gives units back.

        Args:
            now: When they were used.
            most_debt: The bucket owes no more than so many units afterwards.
        """
        self._set(max(-most_debt, min(self.burst, self.units(now) - units)), now)

    def _set(self, units: float, now: float) -> None:
        self._units = units
        self.changed_at = max(self.changed_at, now)


class TokenBuckets:
    """A bucket for each name. Of too many names the one that was used longest ago is forgotten.

    Args:
        burst_s: A full bucket has the units of so many seconds.
        min_burst: But at least so many units.
        max_debt_s: A bucket owes at most the units of so many seconds.
    """

    def __init__(
        self, *, burst_s: float = BURST_S, min_burst: float = 1.0, max_debt_s: float = math.inf
    ) -> None:
        self._burst_s = burst_s
        self._min_burst = min_burst
        self._max_debt_s = max_debt_s
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take_units(self, name: str, per_s: float, now: float, units: float = 1.0, sharers: int = 1) -> float:
        """Takes units for a request that is about to be served.

        Args:
            name: The user or tenant.
            per_s: Its rate in units a second; 0: no limit.
            units: What the request counts; at most a full bucket is taken, so that each request can pass.
            sharers: Processes that limit this rate together. Units come back to each at its share of the
                rate, but each lets a whole burst pass (decision 0062).

        Returns:
            0 if they were taken, else the seconds until they can be.
        """
        if not per_s:
            return 0.0
        bucket = self._bucket(name, per_s, now, sharers)
        return bucket.take_units(min(units, bucket.burst), now)

    def wait_s(self, name: str, per_s: float, now: float, units: float) -> float:
        """Returns the seconds until the name's bucket has that many units; 0 if it has, or has no limit."""
        return self._bucket(name, per_s, now, 1).wait_s(units, now) if per_s else 0.0

    def charge_units(self, name: str, per_s: float, now: float, units: float, sharers: int = 1) -> None:
        """Takes units that a request has used already; later requests wait for what is owed."""
        if per_s:
            bucket = self._bucket(name, per_s, now, sharers)
            bucket.charge_units(units, now, bucket.per_s * self._max_debt_s)

    def _bucket(self, name: str, per_s: float, now: float, sharers: int) -> TokenBucket:
        burst = max(self._min_burst, per_s * self._burst_s)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(per_s / sharers, burst, now)
            if len(self._buckets) > MAX_NAMES:
                self._buckets.popitem(last=False)
        else:
            bucket.per_s, bucket.burst = per_s / sharers, burst
            self._buckets.move_to_end(name)
        return bucket
