"""What a tenant may store: sessions, their bytes, pins. Pure; `scripts.py` has the same rules in Lua.

A session that was made for a request without an id, and to which no second turn came, is *spare*: at its
quota a tenant loses its oldest spare sessions before a record is refused. Sessions that a caller named,
created, imported, pinned or went on with stay until they expire.
"""

from dataclasses import dataclass

from services.kvstate.domain.block_eviction import SESSION_SHARE
from services.kvstate.domain.session_merge import SessionEntry

# What a session takes beside its record and its summary, as measured (docs/decisions/0020): keys, entries of
# three indexes and of the account. Each of them has the id.
OVERHEAD = 768
ID_COPIES = 5
MAX_TOMBSTONES = 10_000  # of a tenant, some 300 bytes each
NO_LIMIT_BYTES = 2**30  # of a tenant, where Redis has no `maxmemory` to take a share of
NEARLY = 0.9
ALONE_SHARE = 0.4  # of `maxmemory` for a tenant, in a Redis that has sessions and no KV


@dataclass(frozen=True, slots=True)
class SessionQuotas:
    """Of one tenant. num_bytes: 0: `share` of Redis's `maxmemory`, and less of it where there are several.

    all_pins: of all tenants together, which is what routers keep in mind.
    """

    sessions: int = 100_000
    num_bytes: int = 0
    pins: int = 1000
    all_pins: int = 65_536
    share: float = SESSION_SHARE

    @property
    def tombstones(self) -> int:
        """Deleted sessions of a tenant that are remembered one by one."""
        return min(self.sessions, MAX_TOMBSTONES)

    def bytes_for(self, maxmemory: int, tenants: int = 1) -> int:
        """Bytes of sessions that a tenant may have.

        All tenants at their quotas together have less than twice `share`, however many they are.

        Args:
            maxmemory: of Redis; 0: it has none.
            tenants: that have sessions.
        """
        share = self.share * 2 / (max(1, tenants) + 1)
        return self.num_bytes or int(share * maxmemory) or NO_LIMIT_BYTES

    def nearly_full(self, sessions: int, num_bytes: int, max_bytes: int) -> bool:
        """Whether a tenant has come close to one of its quotas. max_bytes: its `bytes_for`."""
        return sessions >= NEARLY * self.sessions or num_bytes >= NEARLY * max_bytes


@dataclass(frozen=True, slots=True)
class TenantUsage:
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


def size_of(entry: SessionEntry) -> int:
    """Bytes that a session counts for."""
    names = ID_COPIES * len(entry.session_id.encode()) + len(entry.tenant.encode())
    return len(entry.record) + len(entry.summary) + OVERHEAD + names
