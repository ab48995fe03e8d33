"""A bounded number of small entries that belong to tenants.

Surplus goes from the tenant that has most, its oldest first: a tenant that floods loses its own entries only.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class TenantEntries(Generic[V]):
    """Entries by tenant and name, at most `most` of all tenants together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._tenants: dict[str, OrderedDict[str, V]] = {}  # oldest first; none is empty

    def __len__(self) -> int:
        return self._count

    def get(self, tenant: str, name: str) -> V | None:
        """Returns the entry; None if there is none."""
        entries = self._tenants.get(tenant)
        return None if entries is None else entries.get(name)

    def put(self, tenant: str, name: str, value: V) -> None:
        """Keeps an entry as the tenant's newest, in place of one of that name."""
        self.pop(tenant, name)
        self._tenants.setdefault(tenant, OrderedDict())[name] = value
        self._count += 1
        if self._count > self._most:  # all tenants are visited only in this case
            self._drop_oldest(max(self._tenants, key=lambda each: len(self._tenants[each])))

    def pop(self, tenant: str, name: str) -> V | None:
        """Removes and returns an entry; None if there is none."""
        entries = self._tenants.get(tenant)
        if entries is None or name not in entries:
            return None
        value = entries.pop(name)
        self._count -= 1
        if not entries:
            del self._tenants[tenant]
        return value

    def drop_oldest(self, is_over: Callable[[V], bool]) -> None:
        """Drops each tenant's oldest entries up to the first one for which `is_over` is false."""
        for tenant in list(self._tenants):
            while (entries := self._tenants.get(tenant)) and is_over(next(iter(entries.values()))):
                self._drop_oldest(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        self.pop(tenant, next(iter(self._tenants[tenant])))
