"""Plain stores of tenants and keys, and of the audit log, with which contract tests compare the real ones."""

from msgspec.structs import replace

from services.kvstate.accounts.store import VersionMoved
from services.kvstate.accounts.table import AccountTable
from shared.messages import AccountRecord, AuditEntry


class MemoryAccounts:
    """Implements `AccountStore`."""

    def __init__(self) -> None:
        self._table = AccountTable()

    async def read(self) -> AccountTable:
        """See `AccountStore.read`."""
        return self._table

    async def write(self, name: str, record: AccountRecord | None, version: int) -> None:
        """See `AccountStore.write`."""
        if version != self._table.version:
            raise VersionMoved
        if record is None:
            self._table.drop(name, version + 1)
        else:
            self._table.put(record, version + 1)


class MemoryAudit:
    """Implements `AuditLog`."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    async def add(self, entry: AuditEntry) -> int:
        """See `AuditLog.add`."""
        self.entries.append(replace(entry, number=len(self.entries) + 1))
        return len(self.entries)

    async def newest(self, before: int, count: int) -> list[AuditEntry]:
        """See `AuditLog.newest`."""
        end = len(self.entries) if not before else min(before - 1, len(self.entries))
        return self.entries[max(0, end - count) : end][::-1]
