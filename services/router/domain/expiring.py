"""A map that is bounded in entries, in cost and in time. The oldest entry goes first."""

from collections import OrderedDict
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


_Entry = tuple[V, float, int]  # value, when it expires, cost; a router makes five of them for each request


class ExpiringMap(Generic[K, V]):
    """Entries live `ttl_s` seconds.

    Args:
        ttl_s: From `put` on.
        max_cost: Of the sum of the costs given to `put`; an entry that costs more is not kept.
    """

    def __init__(self, *, ttl_s: float, max_entries: int, max_cost: int | None = None) -> None:
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._max_cost = inf if max_cost is None else max_cost
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._oldest: tuple[K, _Entry[V]] | None = None  # the first of `_entries`, if it is known
        self._cost = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cost(self) -> int:
        """The sum of the costs of all entries."""
        return self._cost

    def get(self, key: K, now: float) -> V | None:
        """The value, or None when it was never put, was pushed out, or is too old."""
        entry = self._entries.get(key)
        return entry[0] if entry is not None and entry[1] > now else None

    def put(self, key: K, value: V, now: float, cost: int = 0) -> None:
        """Keeps the value as the newest entry, in place of an older one under the key."""
        entries = self._entries
        if key in entries:
            self.pop(key, now)
        entries[key] = value, now + self._ttl_s, cost
        self._cost += cost
        self._shrink(now)

    def pop(self, key: K, now: float) -> V | None:
        """Takes the value out; None as in `get`."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        if self._oldest is not None and self._oldest[0] == key:
            self._oldest = None
        self._cost -= entry[2]
        return entry[0] if entry[1] > now else None

    def expire(self, now: float) -> None:
        """Drops what is too old; `put` does the same, this is for quiet times."""
        if self._entries:
            self._shrink(now)

    def _shrink(self, now: float) -> None:
        """Drops the oldest entries until the first is young enough and no limit is passed."""
        entries, oldest = self._entries, self._oldest
        if oldest is None:
            oldest = next(iter(entries.items()))
        while oldest[1][1] <= now or len(entries) > self._max_entries or self._cost > self._max_cost:
            entries.popitem(last=False)
            self._cost -= oldest[1][2]
            if not entries:
                self._oldest = None
                return
            oldest = next(iter(entries.items()))
        self._oldest = oldest
