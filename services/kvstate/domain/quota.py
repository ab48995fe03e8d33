"""What a tenant may store: sessions, their bytes, pins. Pure; `scripts.py` has the same rules in Lua.

A session that was made for a request without an id, and to which no second turn came, is *spare*: at its
quota a tenant loses its oldest spare sessions before a record is refused. Sessions that a caller named,
created, imported, pinned or went on with stay until they expire.
"""

from dataclasses import dataclass

from services.kvstate.domain.eviction import SESSION_SHARE

OVERHEAD = 512  # bytes of keys and index entries beside a record and its summary
NO_LIMIT_BYTES = 2**30  # of a tenant, where Redis has no `maxmemory` to take a share of
NEARLY = 0.9
ALONE_SHARE = 0.5  # of `maxmemory` for a tenant, in a Redis that has sessions and no KV


@dataclass(frozen=True, slots=True)
class SessionQuotas:
    """Of one tenant. num_bytes: 0: `share` of Redis's `maxmemory`.

    all_pins: of all tenants together, which is what routers keep in mind.
    """

    sessions: int = 100_000
    num_bytes: int = 0
    pins: int = 1000
    all_pins: int = 65_536
    share: float = SESSION_SHARE

    def bytes_for(self, maxmemory: int) -> int:
        """Bytes of sessions that a tenant may have, in a Redis with this `maxmemory`; 0: it has none."""
        return self.num_bytes or int(self.share * maxmemory) or NO_LIMIT_BYTES

    def nearly_full(self, sessions: int, num_bytes: int, maxmemory: int) -> bool:
        """Whether a tenant has come close to one of its quotas."""
        return sessions >= NEARLY * self.sessions or num_bytes >= NEARLY * self.bytes_for(maxmemory)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant's sessions take."""

    sessions: int = 0
    num_bytes: int = 0

    def missing(self, before: int, size: int, max_sessions: int, max_bytes: int) -> tuple[int, int]:
        """Sessions and bytes that have to go before a record fits; (0, 0): it fits.

        A record that is no larger than the one it replaces fits always.

        Args:
            before: size of the stored record; 0: there is none.
            size: of the new one.
            max_sessions, max_bytes: the quotas.
        """
        sessions = 0 if before else max(0, self.sessions + 1 - max_sessions)
        num_bytes = 0 if size <= before else max(0, self.num_bytes + size - before - max_bytes)
        return sessions, num_bytes


def size_of(record: bytes, summary: bytes) -> int:
    """Bytes that a session counts for."""
    return len(record) + len(summary) + OVERHEAD
