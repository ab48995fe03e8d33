"""Entries of tenants within one bound of count and bytes, and batches of them, tenants in rotation.

Surplus goes from the tenant that has most, its oldest first: a tenant that floods loses its own entries only.
Batches have the oldest of each tenant first, so that one tenant's backlog delays no other.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

V = TypeVar("V")
Key = tuple[str, str]  # tenant, name
_BYTES = attrgetter("num_bytes")


@dataclass(slots=True)
class _Account(Generic[V]):
    entries: OrderedDict[str, tuple[V, int]] = field(default_factory=OrderedDict)  # with bytes; oldest first
    num_bytes: int = 0


def _count(account: _Account[V]) -> int:
    return len(account.entries)


class SizedEntries(Generic[V]):
    """At most `most` entries of all tenants, and `most_bytes` of them, once `drop_surplus` was called."""

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._accounts: OrderedDict[str, _Account[V]] = OrderedDict()  # in the order of turns; none is empty
        self._count = 0
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def get(self, key: Key) -> V | None:
        """Returns the entry; None if there is none."""
        account = self._accounts.get(key[0])
        entry = None if account is None else account.entries.get(key[1])
        return None if entry is None else entry[0]

    def values(self) -> Iterator[V]:
        """Returns all entries, each tenant's oldest first."""
        return (value for account in self._accounts.values() for value, _ in account.entries.values())

    def newest_by_tenant(self) -> list[V]:
        """Returns all entries: the newest of each tenant, then the second newest of each, and so on."""
        left = [[value for value, _ in account.entries.values()] for account in self._accounts.values()]
        rounds = ([values.pop() for values in left if values] for _ in range(max(map(len, left), default=0)))
        return list(chain.from_iterable(rounds))

    def put(self, key: Key, value: V, num_bytes: int) -> None:
        """Adds an entry as the tenant's newest, or changes the one of that name where it stands."""
        account = self._accounts.get(key[0])
        if account is None:
            account = self._accounts[key[0]] = _Account()
        before = account.entries.get(key[1])
        account.entries[key[1]] = value, num_bytes
        if before is None:
            self._weigh(account, 1, num_bytes)
        else:
            self._weigh(account, 0, num_bytes - before[1])

    def put_first(self, key: Key, value: V, num_bytes: int) -> None:
        """Adds a new entry as the tenant's oldest."""
        self.put(key, value, num_bytes)
        self._accounts[key[0]].entries.move_to_end(key[1], last=False)

    def refresh(self, key: Key) -> None:
        """Makes an existing entry the tenant's newest."""
        self._accounts[key[0]].entries.move_to_end(key[1])

    def pop(self, key: Key) -> V | None:
        """Removes and returns an entry; None if there is none."""
        account = self._accounts.get(key[0])
        entry = None if account is None else account.entries.pop(key[1], None)
        if account is None or entry is None:
            return None
        self._weigh(account, -1, -entry[1])
        if not account.entries:
            del self._accounts[key[0]]
        return entry[0]

    def drop_surplus(self) -> list[tuple[Key, V]]:
        """Removes and returns the surplus; one entry stays, however large it is."""
        dropped: list[tuple[Key, V]] = []
        while self._count > 1 and (self._count > self._most or self._num_bytes > self._most_bytes):
            # all tenants are visited only in this case
            has: Callable[[_Account[V]], int] = _count if self._count > self._most else _BYTES
            tenant = max(self._accounts, key=lambda each: has(self._accounts[each]))
            key = tenant, next(iter(self._accounts[tenant].entries))
            value = self.pop(key)
            assert value is not None
            dropped.append((key, value))
        return dropped

    def take(self, most: int, most_bytes: int) -> dict[Key, V]:
        """Removes and returns a batch: the oldest of each tenant in rotation, at least one entry.

        A tenant whose entry does not fit any more has the first turn of the next batch.
        """
        batch: dict[Key, V] = {}
        tenants = list(self._accounts)
        while tenants and len(batch) < most:
            again = []
            for tenant in tenants[: most - len(batch)]:
                name, (value, num_bytes) = next(iter(self._accounts[tenant].entries.items()))
                if batch and num_bytes > most_bytes:
                    continue
                most_bytes -= num_bytes
                batch[tenant, name] = value
                self.pop((tenant, name))
                if tenant in self._accounts:
                    self._accounts.move_to_end(tenant)
                    again.append(tenant)
            tenants = again
        return batch

    def _weigh(self, account: _Account[V], count: int, num_bytes: int) -> None:
        self._count += count
        account.num_bytes += num_bytes
        self._num_bytes += num_bytes
