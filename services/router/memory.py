"""What a router remembers of requests for a short time. To lose it costs a little work, no more."""

from dataclasses import dataclass

from services.router.domain.balance import DecayingCounts
from services.router.domain.duplicates import Duplicates
from services.router.domain.expiring import ExpiringMap
from services.router.incoming import Incoming
from services.router.settings import Settings


@dataclass(frozen=True, slots=True)
class Forward:
    """A request on its way to a group, kept until it is certain that the group has it."""

    incoming: Incoming
    group: str
    count: int  # groups that it was offered to, this one included


class Memory:
    """Every map here is bounded in entries and in time, and the one that holds requests in bytes as well."""

    def __init__(self, settings: Settings) -> None:
        max_entries = settings.router_duplicates_max
        self.duplicates = Duplicates(ttl_s=settings.router_duplicates_s, max_entries=max_entries)
        self.forwards: ExpiringMap[str, Forward] = ExpiringMap(
            ttl_s=settings.router_forward_s,
            max_entries=max_entries,
            max_cost=settings.router_forward_max_bytes,
        )
        self.last_groups: ExpiringMap[str, str] = ExpiringMap(
            ttl_s=settings.router_sessions_s, max_entries=settings.router_sessions_max
        )
        self.balance = DecayingCounts(settings.router_balance_half_life_s)

    def expire(self, now: float) -> None:
        """Drops what is too old, also when no requests come."""
        self.duplicates.expire(now)
        self.forwards.expire(now)
        self.last_groups.expire(now)
