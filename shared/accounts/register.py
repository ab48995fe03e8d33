"""A copy of all tenants, keys, prices and rules, for parts that decide by them. Pure."""

from collections import Counter
from collections.abc import Iterable

from shared.messages import (
    AccountChanged,
    AccountRules,
    KeyRecord,
    Limits,
    PriceRecord,
    StoredAccount,
    TenantRecord,
)


class AccountRegister:
    """The records, as far as they were read.

    Attributes:
        version: Of what was read; 0: nothing was, or the register was always empty.
        is_current: Whether it was read, and no change is known to be missing.
        rules: What holds for all tenants.
        changed_at: Counts the changes that were taken in, so that readers see that something has changed.
        was_read: Whether the register was ever read.
        key_tenants: How many keys each tenant has, those of admins and bus users apart; no entry: none.
    """

    def __init__(self) -> None:
        self.version = 0
        self.is_current = self.was_read = False
        self.rules = AccountRules()
        self.changed_at = 0
        self.key_tenants: Counter[str] = Counter()
        self._stored: dict[str, StoredAccount] = {}
        self._tenants: dict[str, TenantRecord] = {}
        self._keys: dict[str, KeyRecord] = {}
        self._prices: dict[str, PriceRecord] = {}
        self._bus_users: dict[str, KeyRecord] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def tenant(self, name: str) -> TenantRecord | None:
        """The record of a tenant; None: it has none, and no limits."""
        return self._tenants.get(name)

    def limits(self, name: str) -> Limits | None:
        """The limits of a tenant; None: it has none."""
        record = self._tenants.get(name)
        return None if record is None else record.limits

    def weight(self, name: str) -> float:
        """The weight of a tenant in busy groups."""
        record = self._tenants.get(name)
        return 1.0 if record is None else record.weight

    def session_days(self, name: str) -> int:
        """How long sessions of a tenant are kept; 0: as the settings say."""
        record = self._tenants.get(name)
        return 0 if record is None else record.session_days

    def response_days(self, name: str) -> int:
        """How long stored responses of a tenant are kept; 0: as the settings say."""
        record = self._tenants.get(name)
        return 0 if record is None else record.response_days

    def file_days(self, name: str) -> int:
        """How long files of a tenant are kept; 0: as each of them says."""
        record = self._tenants.get(name)
        return 0 if record is None else record.file_days

    def batch_days(self, name: str) -> int:
        """How long batches of a tenant and their files are kept; 0: as the settings say."""
        record = self._tenants.get(name)
        return 0 if record is None else record.batch_days

    def key(self, key_id: str) -> KeyRecord | None:
        """The record of a key, also of one that has expired."""
        return self._keys.get(key_id)

    def bus_user(self, user: str) -> KeyRecord | None:
        """The record of a bus user by its name at the broker, also of one that has expired."""
        return self._bus_users.get(user)

    def bus_users(self) -> list[KeyRecord]:
        """All bus users, by name."""
        return [self._bus_users[user] for user in sorted(self._bus_users)]

    def named_key(self, name: str) -> KeyRecord | None:
        """A key by its id, or a bus user by its name at the broker."""
        return self._keys.get(name) or self._bus_users.get(name)

    def price(self, model: str) -> PriceRecord | None:
        """The price of a model; an adapter without one has that of its base."""
        found = self._prices.get(model)
        if found is None and ":" in model:
            return self._prices.get(model.rpartition(":")[0])
        return found

    def stored(self, name: str) -> StoredAccount | None:
        """A record by its name, with its revision."""
        return self._stored.get(name)

    def tenants(self) -> list[TenantRecord]:
        """All tenants that have a record, by name."""
        return [self._tenants[name] for name in sorted(self._tenants)]

    def keys(self) -> list[KeyRecord]:
        """All keys, by id."""
        return [self._keys[key_id] for key_id in sorted(self._keys)]

    def keys_of(self, tenant: str = "") -> list[KeyRecord]:
        """The keys of a tenant, by id; empty: of all."""
        return [key for key_id, key in sorted(self._keys.items()) if not tenant or key.tenant == tenant]

    def prices(self) -> list[PriceRecord]:
        """All prices, by model."""
        return [self._prices[model] for model in sorted(self._prices)]

    def replace_all(self, records: Iterable[StoredAccount], version: int) -> None:
        """Takes in the whole register."""
        self._stored, self._tenants, self._keys, self._prices, self._bus_users = {}, {}, {}, {}, {}
        self.rules, self.key_tenants = AccountRules(), Counter()
        for stored in records:
            self._put(stored)
        self.version, self.is_current, self.was_read = version, True, True
        self.changed_at += 1

    def apply(self, change: AccountChanged) -> bool:
        """Takes in one change; False if others are missing, and the register has to be read again.

        What the change says holds at once, also if others are missing: a removed key is not valid any more.
        """
        if change.version <= self.version:
            return True
        whole = change.before == self.version and self.is_current
        if change.put is not None:
            self._put(change.put)
        elif change.removed:
            self._remove(change.removed)
        self.changed_at += 1
        if not whole:
            self.is_current = False
            return False
        self.version = change.version
        return True

    def _put(self, stored: StoredAccount) -> None:
        record = stored.record
        known = self._stored.get(record.name)
        if known is not None and known.revision > stored.revision:
            return
        self._stored[record.name] = stored
        if isinstance(record, TenantRecord):
            self._tenants[record.tenant] = record
        elif isinstance(record, KeyRecord):
            self._count_key(self._keys.get(record.key_id), -1)
            self._keys[record.key_id] = record
            self._count_key(record, 1)
            if record.bus_user is not None:
                self._bus_users[record.bus_user.user] = record
        elif isinstance(record, PriceRecord):
            self._prices[record.model] = record
        else:
            self.rules = record

    def _remove(self, name: str) -> None:
        stored = self._stored.pop(name, None)
        if stored is None:
            return
        record = stored.record
        if isinstance(record, TenantRecord):
            del self._tenants[record.tenant]
        elif isinstance(record, KeyRecord):
            del self._keys[record.key_id]
            self._count_key(record, -1)
            if record.bus_user is not None and self._bus_users.get(record.bus_user.user) == record:
                del self._bus_users[record.bus_user.user]
        elif isinstance(record, PriceRecord):
            del self._prices[record.model]
        else:
            self.rules = AccountRules()

    def _count_key(self, key: KeyRecord | None, change: int) -> None:
        if key is None or key.scopes.admin or key.bus_user is not None:
            return
        self.key_tenants[key.tenant] += change
        if not self.key_tenants[key.tenant]:
            del self.key_tenants[key.tenant]
