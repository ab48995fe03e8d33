"""Remembers for a short time which group a request went to, so that a copy of it goes to the same one.

Callers publish a request again when no group answers in time. The leader that has it answers the copy from
what it has; another leader would compute it a second time.
"""

from services.router.domain.expiring import ExpiringMap


class Duplicates:
    """Bounded in entries and in time. A new attempt of a request is a new request here."""

    def __init__(self, *, ttl_s: float, max_entries: int) -> None:
        self._groups: ExpiringMap[tuple[str, str, int], str] = ExpiringMap(
            ttl_s=ttl_s, max_entries=max_entries
        )

    def __len__(self) -> int:
        return len(self._groups)

    def group_of(self, tenant: str, request_id: str, attempt: int, now: float) -> str | None:
        """The group that this request of the tenant went to lately."""
        return self._groups.get((tenant, request_id, attempt), now)

    def remember(self, tenant: str, request_id: str, attempt: int, group: str, now: float) -> None:
        """The request went to `group` now."""
        self._groups.put((tenant, request_id, attempt), group, now)

    def expire(self, now: float) -> None:
        """Drops what is too old."""
        self._groups.expire(now)
