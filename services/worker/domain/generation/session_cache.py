"""A leader's cache of session records, within a bound of bytes that tenants share.

A tenant that has more than others loses its own oldest records first.
"""

from services.worker.domain.generation.sized_entries import Key, SizedEntries
from shared.messages import SessionRecord


class SessionCache:
    """Records by tenant and session id, with the time at which the session was known to be there."""

    def __init__(self, most_bytes: int) -> None:
        self._entries: SizedEntries[SessionRecord] = SizedEntries(most=1 << 62, most_bytes=most_bytes)
        self._seen_at: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def newest_first(self) -> list[SessionRecord]:
        """Returns the record used last of each tenant, then the one before it of each, and so on."""
        return self._entries.newest_by_tenant()

    def use(self, key: Key) -> SessionRecord | None:
        """Returns the record and makes it the tenant's newest; None if it is not known."""
        record = self._entries.get(key)
        if record is not None:
            self._entries.refresh(key)
        return record

    def seen_at(self, key: Key) -> float:
        """Returns when the session was last known to exist; -inf if it is not known."""
        return self._seen_at.get(key, float("-inf"))

    def see(self, key: Key, now: float) -> None:
        """Notes that the session of a known record exists now."""
        self._seen_at[key] = now

    def put(self, key: Key, record: SessionRecord, now: float) -> None:
        """Keeps a record as the tenant's newest."""
        self._entries.put(key, record, record_bytes(record))
        self._entries.refresh(key)
        self._seen_at[key] = now
        for dropped, _ in self._entries.drop_surplus():
            del self._seen_at[dropped]

    def pop(self, key: Key) -> None:
        """Forgets a session."""
        if self._entries.pop(key) is not None:
            del self._seen_at[key]


def record_bytes(record: SessionRecord) -> int:
    """Returns about how large a record is, at least its size on the wire: four bytes a character at most."""
    letters = len(record.session_id) + len(record.model) + len(record.last_request)
    letters += sum([len(message.content) + len(message.name) for message in record.messages])
    for mark in record.recent:
        letters += len(mark.request_id) + len(mark.call_key) + len(mark.call_digest) + len(mark.replaces)
    return 500 + 4 * letters + 40 * len(record.messages) + 120 * len(record.recent) + len(record.token_ids)
