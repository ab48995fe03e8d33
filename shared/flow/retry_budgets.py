"""Budgets of what is sent again: requests by a client, frames by a leader. Pure: the time is an argument."""

from shared.flow.token_bucket import TokenBucket, TokenBuckets

MIN_RESEND_COST = 1024  # bytes of an answer to a resend call, however short it is


class RetryBudget:
    """Limits how many requests of a client are published again in a second.

    It keeps a fleet that comes back from being flooded by the requests that waited for it.

    Args:
        per_s: Requests a second, and at once; one at once if it is less.
    """

    def __init__(self, per_s: float) -> None:
        self._bucket = TokenBucket(per_s, max(1.0, per_s), 0.0)

    def take_retry(self, now: float) -> bool:
        """Takes one publish; returns False if the budget is used up for now."""
        return self._bucket.take_units(1, now) == 0.0


class ResendBudget:
    """Limits the bytes of frames that are sent again to each outside user in a second.

    A call of a hundred bytes has an answer of half a MiB, which costs the leader's loop some 40 ms. Many such
    calls would keep a group from its work. The size of an answer is known only afterwards, so a user may go
    into debt by one answer.

    Args:
        bytes_per_s: For each user; 0 for no limit.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._buckets = TokenBuckets(min_burst=0.0)

    def wait_s(self, user: str, now: float) -> float:
        """Returns the seconds until the user may ask again; 0 if it may now, since it has a byte left."""
        if not self._buckets.wait_s(user, self.bytes_per_s, now, 1):
            return 0.0
        return self._buckets.wait_s(user, self.bytes_per_s, now, MIN_RESEND_COST)

    def spend_bytes(self, user: str, num_bytes: int, now: float) -> None:
        """Counts an answer of that size to the user."""
        self._buckets.charge_units(user, self.bytes_per_s, now, max(MIN_RESEND_COST, num_bytes))
