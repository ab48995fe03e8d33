"""A map that is bounded in entries, in cost and in time. The oldest entry goes first."""

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Entry(NamedTuple, Generic[V]):
    value: V
    expires_at: float
    cost: int


class ExpiringMap(Generic[K, V]):
    """Entries live `ttl_s` seconds.

    Args:
        ttl_s: From `put` on.
        max_entries: Of entries.
        max_cost: Of the sum of the costs given to `put`; an entry that costs more is not kept.
    """

    def __init__(self, *, ttl_s: float, max_entries: int, max_cost: int | None = None) -> None:
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._max_cost = max_cost
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
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
        return entry.value if entry is not None and entry.expires_at > now else None

    def put(self, key: K, value: V, now: float, cost: int = 0) -> None:
        """Keeps the value as the newest entry, in place of an older one under the key."""
        self.pop(key, now)
        self._entries[key] = _Entry(value, now + self._ttl_s, cost)
        self._cost += cost
        while self._entries and self._must_shrink(now):
            self._cost -= self._entries.popitem(last=False)[1].cost

    def pop(self, key: K, now: float) -> V | None:
        """Takes the value out; None as in `get`."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._cost -= entry.cost
        return entry.value if entry.expires_at > now else None

    def expire(self, now: float) -> None:
        """Drops what is too old; `put` does the same, this is for quiet times."""
        while self._entries and next(iter(self._entries.values())).expires_at <= now:
            self._cost -= self._entries.popitem(last=False)[1].cost

    def _must_shrink(self, now: float) -> bool:
        if len(self._entries) > self._max_entries:
            return True
        if self._max_cost is not None and self._cost > self._max_cost:
            return True
        return next(iter(self._entries.values())).expires_at <= now
