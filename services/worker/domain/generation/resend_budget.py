"""Limits the bytes of frames that are sent again to each outside user in a second.

A call of a hundred bytes has an answer of half a MiB, which costs the leader's loop some 40 ms. Many such
calls would keep a group from its work.
"""

from collections import OrderedDict

BURST_S = 2.0
MIN_COST = 1024  # of an answer, however short
MAX_USERS = 4096


class ResendBudget:
    """Bounded in users: the one that asked longest ago is forgotten first.

    Args:
        bytes_per_s: For each user; 0 for no limit.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # bytes, which may be owed; when

    def wait_s(self, user: str, now: float) -> float:
        """Returns the seconds until the user may ask again; 0 if it may now."""
        left = self._of(user, now)
        return 0.0 if not self.bytes_per_s or left > 0 else (MIN_COST - left) / self.bytes_per_s

    def spend(self, user: str, num_bytes: int, now: float) -> None:
        """Counts an answer of that size to the user."""
        if self.bytes_per_s:
            self._left[user] = self._of(user, now) - max(MIN_COST, num_bytes), now
            self._left.move_to_end(user)
            if len(self._left) > MAX_USERS:
                self._left.popitem(last=False)

    def _of(self, user: str, now: float) -> float:
        most = self.bytes_per_s * BURST_S
        left, at = self._left.get(user, (most, now))
        return min(most, left + (now - at) * self.bytes_per_s)
