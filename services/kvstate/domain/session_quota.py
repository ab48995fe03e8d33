"""Lives of sessions, and quotas of a tenant: sessions, bytes, pins. Pure; `sessions/lua` has the same rules.

A session that was made for a request without an id and has had no second turn is *spare*. It lives for a
short time only, and at its quota a tenant loses its oldest spare sessions before a record is refused.
Sessions that a caller named, created, imported, pinned or continued stay until they expire.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from services.kvstate.domain.block_eviction import SESSION_SHARE
from services.kvstate.domain.session_merge import SessionEntry
from shared.messages import Limits
from shared.session_limits import PinLimit
from shared.setting_types import AnyBytes, SecondToTenYears

# Bytes of a session beside its record and its summary, as measured (docs/decisions/0020): keys, and entries
# of three indexes and of the account, each with the id.
OVERHEAD = 768
ID_COPIES = 5
MAX_TOMBSTONES = 10_000  # of a tenant, some 300 bytes each
NO_LIMIT_BYTES = 2**30  # of a tenant where Redis has no `maxmemory`
NEARLY = 0.9
LimitsOf = Callable[[str], Limits | None]  # of a tenant by its name; a limit of 0 is none


DaysOf = Callable[[str], int]  # how long a tenant's sessions live, by its name; 0: as the settings say
DAY_MS = 86_400_000


def no_own_days(_: str) -> int:
    """For a service that knows of no tenants with lives of sessions of their own."""
    return 0


def no_own_limits(_: str) -> Limits | None:
    """For a service that knows of no tenants with limits of their own."""
    return None


ALONE_SHARE = 0.4  # of `maxmemory` for a tenant, in a Redis that has sessions and no KV


@dataclass(frozen=True)
class SessionLives:
    """How long sessions live. `KVStateSettings` inherits the fields, so they are also settings."""

    session_ttl_s: SecondToTenYears = 604_800.0
    """How long a session lives after its last turn."""
    session_spare_ttl_s: SecondToTenYears = 3600.0
    """How long a spare session lives: one whose id was made for a request that named none, before its second
    turn; at most `RYZ_SESSION_TTL_S` (docs/sessions.md)."""

    def ttl_ms(self, days: int) -> int:
        """Milliseconds that a session lives whose tenant has so many days of its own; 0: it has none."""
        return days * DAY_MS or int(self.session_ttl_s * 1000)


@dataclass(frozen=True, kw_only=True)
class TenantSessionLimits:
    """The quotas of one tenant. `KVStateSettings` inherits the fields, so they are also settings."""

    session_max_per_tenant: Annotated[int, Interval(ge=1, le=100_000_000)] = 100_000
    """Sessions of a tenant; beyond it its oldest expendable ones go, then new ones are refused
    (docs/sessions.md)."""
    session_bytes_per_tenant: AnyBytes = 0
    """Bytes of a tenant's sessions in Redis, keys and indexes included; 0: 40 % of its `maxmemory`, 10 % if
    it has KV as well, and 2/(N+1) of that where N tenants have sessions; 1 GiB if it has no such limit."""
    session_pins_per_tenant: Annotated[int, Interval(ge=0, le=10_000_000)] = 1000
    """Pinned sessions of a tenant."""


@dataclass(frozen=True, kw_only=True)
class SessionQuotas(TenantSessionLimits, PinLimit):
    """Quotas of one tenant, and of the pins of all.

    Attributes:
        share: Of Redis's `maxmemory` for the sessions of one tenant, if `session_bytes_per_tenant` is 0; less
            of it with several tenants.
    """

    share: float = SESSION_SHARE

    @property
    def tombstones(self) -> int:
        """The number of deleted sessions of a tenant that are remembered one by one."""
        return min(self.session_max_per_tenant, MAX_TOMBSTONES)

    def bytes_for(self, maxmemory: int, tenants: int = 1) -> int:
        """Returns the bytes of sessions that a tenant may have.

        All tenants at their quotas together have less than twice `share`, whatever their number.

        Args:
            maxmemory: The limit of Redis; 0: it has none.
            tenants: Number of tenants with sessions.
        """
        share = self.share * 2 / (max(1, tenants) + 1)
        return self.session_bytes_per_tenant or int(share * maxmemory) or NO_LIMIT_BYTES

    def nearly_full(self, sessions: int, num_bytes: int, max_bytes: int) -> bool:
        """Returns whether a tenant is close to a quota; `max_bytes` is its `bytes_for`."""
        return sessions >= NEARLY * self.session_max_per_tenant or num_bytes >= NEARLY * max_bytes


def size_of(entry: SessionEntry) -> int:
    """Returns the bytes that a session counts for."""
    names = ID_COPIES * len(entry.session_id.encode()) + len(entry.tenant.encode())
    return len(entry.record) + len(entry.summary) + OVERHEAD + names
