"""How many bytes of frames each user outside may have sent again in a second. Pure: time is an argument.

A question of a hundred bytes has an answer of half a MiB, which costs the leader's loop some 40 ms. Asked
often enough it would keep a group from its work.
"""

from collections import OrderedDict

BURST_S = 2.0
MIN_COST = 1024  # of an answer, however short
MAX_USERS = 4096


class ResendBudget:
    """Bounded in users: the one that asked longest ago is forgotten first. bytes_per_s: 0: no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self._rate = bytes_per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # bytes, which may be owed; when

    def wait_s(self, user: str, now: float) -> float:
        """0: the user may ask now. Else the seconds until it may."""
        left = self._of(user, now)
        return 0.0 if not self._rate or left > 0 else (MIN_COST - left) / self._rate

    def spend(self, user: str, num_bytes: int, now: float) -> None:
        """An answer of that size went to the user."""
        if self._rate:
            self._left[user] = self._of(user, now) - max(MIN_COST, num_bytes), now
            self._left.move_to_end(user)
            if len(self._left) > MAX_USERS:
                self._left.popitem(last=False)

    def _of(self, user: str, now: float) -> float:
        most = self._rate * BURST_S
        left, at = self._left.get(user, (most, now))
        return min(most, left + (now - at) * self._rate)
