"""The contract of a store of tenants, keys and prices, and of the audit log.

`stream_accounts.py` and `stream_audit.py` implement it. Contract tests compare them with plain ones
(`tests/kits/kvstate`).
"""

from typing import Protocol

from services.kvstate.accounts.table import AccountTable
from shared.messages import AccountRecord, AuditEntry


class VersionMoved(Exception):
    """Something else was written since the table was read: read it again."""


class AccountStore(Protocol):
    """Records by name, with a version that each change makes larger by one.

    All methods may be called at the same time, from several processes. Every one raises `Unavailable` when
    the store cannot be reached, does not answer or refuses; `write` may then have been done.
    """

    async def read(self) -> AccountTable:
        """Returns the records, with every change that was done before this call.

        The table is shared: it is read before anything else is awaited.
        """
        ...

    async def write(self, name: str, record: AccountRecord | None, version: int) -> None:
        """Puts a record under its name, or removes the one that is there.

        When it returns, the change was read back. The version is then `version + 1`.

        Args:
            name: Of the record.
            record: None: it is removed.
            version: That of the table by which this was decided.

        Raises:
            VersionMoved: The store has another version; nothing was written.
            Unavailable: As above. A change that was done all the same is found by the next `read`.
        """
        ...


class ClosedMark(Protocol):
    """Outlives the records where these are lost with the broker's JetStream: whether keys were required."""

    async def note(self, *, required: bool) -> None:
        """Sets the mark, or removes it. Does nothing while its store is away: it is called again."""
        ...

    async def stands(self) -> bool:
        """Returns whether keys were required when this was last noted; raises `Unavailable`."""
        ...


class AuditLog(Protocol):
    """Entries that are added and never changed. Raises `Unavailable` as the store does."""

    async def add(self, entry: AuditEntry) -> int:
        """Adds an entry; returns its number, which is larger than that of all before."""
        ...

    async def newest(self, before: int, count: int) -> list[AuditEntry]:
        """Returns up to `count` entries with smaller numbers than `before`, the newest first.

        Args:
            before: 0: from the newest on.
            count: At least 1. Fewer are returned where the entries are large.
        """
        ...
