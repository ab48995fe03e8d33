"""All records in memory, as the messages of the stream say, and pages of them. Pure."""

from bisect import bisect_right

from shared.codec import encode
from shared.messages import AccountPage, AccountRecord, KeyRecord, StoredAccount


class AccountTable:
    """The records by name.

    Attributes:
        version: Of the records: the number of the last change.
        dropped: Names whose last message says that the record was removed, with that message's number.
        unread: Names whose last message is of a newer release. They count as taken.
    """

    def __init__(self) -> None:
        self.version = 0
        self.dropped: dict[str, int] = {}
        self.unread: set[str] = set()
        self._stored: dict[str, tuple[StoredAccount, int]] = {}  # with the bytes that it takes in a page
        self._names: list[str] | None = None

    @property
    def num_messages(self) -> int:
        """How many names the stream has a message of, if nothing is missing here."""
        return len(self._stored) + len(self.dropped) + len(self.unread)

    def put(self, record: AccountRecord, revision: int) -> None:
        """Takes in a record."""
        self._forget(record.name)
        stored = StoredAccount(record=record, revision=revision)
        self._stored[record.name] = stored, len(encode(stored))
        self.version = max(self.version, revision)

    def drop(self, name: str, revision: int) -> None:
        """Takes in that a record was removed."""
        self._forget(name)
        self.dropped[name] = revision
        self.version = max(self.version, revision)

    def put_unread(self, name: str, revision: int) -> None:
        """Takes in a record that cannot be read."""
        self._forget(name)
        self.unread.add(name)
        self.version = max(self.version, revision)

    def stored(self, name: str) -> StoredAccount | None:
        """A record with its revision."""
        found = self._stored.get(name)
        return None if found is None else found[0]

    def count(self, kind: str) -> int:
        """How many records of a kind there are, which is the first word of their names."""
        return sum(name.startswith(f"{kind}.") for name in self._stored)

    def all_keys(self) -> list[KeyRecord]:
        """The keys, in no order."""
        records = (stored.record for stored, _ in self._stored.values())
        return [record for record in records if isinstance(record, KeyRecord)]

    def page(self, cursor: str, room: int, known: int) -> AccountPage:
        """Records from the cursor on, by name; none if the records have the `known` version.

        Args:
            cursor: The last name of the page before; empty: from the beginning.
            room: Bytes after which the page ends; one record is always there.
            known: A version; 0: none.
        """
        if known and known == self.version and not cursor:
            return AccountPage(version=self.version)
        names = self._sorted_names()
        records, used = list[StoredAccount](), 0
        for position in range(bisect_right(names, cursor), len(names)):
            stored, num_bytes = self._stored[names[position]]
            if records and used + num_bytes > room:
                return AccountPage(records=records, version=self.version, cursor=records[-1].record.name)
            records.append(stored)
            used += num_bytes
        return AccountPage(records=records, version=self.version)

    def _forget(self, name: str) -> None:
        self._names = None
        self._stored.pop(name, None)
        self.dropped.pop(name, None)
        self.unread.discard(name)

    def _sorted_names(self) -> list[str]:
        if self._names is None:
            self._names = sorted(self._stored)
        return self._names
