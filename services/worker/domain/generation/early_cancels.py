"""Remembers cancels of requests that are not known, for when a cancel overtakes its request. Pure."""

from services.worker.domain.generation.tenant_entries import TenantEntries

MAX_TOMBSTONES = 10_000  # of all tenants; beyond it the oldest of the one that has most is forgotten


class EarlyCancels:
    """Cancels that came before their requests.

    Args:
        keep_s: How long one holds.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._entries = TenantEntries[tuple[float, int]](MAX_TOMBSTONES)  # until when, which attempt

    def put(self, tenant: str, request_id: str, attempt: int, now: float) -> None:
        """Remembers a cancel up to that attempt; an empty tenant: of any."""
        self._entries.put(tenant, request_id, (now + self._keep_s, attempt))

    def take(self, tenant: str, request_id: str, attempt: int, now: float) -> bool:
        """Returns whether a cancel came before this attempt; a cancel counts once."""
        return bool(self._entries) and any(self._take(one, request_id, attempt, now) for one in (tenant, ""))

    def forget_expired(self, now: float) -> None:
        """Forgets those that are too old."""
        if self._entries:
            self._entries.drop_oldest(lambda entry: entry[0] <= now)

    def _take(self, tenant: str, request_id: str, attempt: int, now: float) -> bool:
        found = self._entries.get(tenant, request_id)
        if found is None or attempt > found[1]:
            return False
        self._entries.pop(tenant, request_id)
        return found[0] > now
