"""What tenants and keys have used of a day or a month, by the sums of usage."""

from datetime import UTC, date, datetime, timedelta

from services.kvstate.limits.used import Used
from services.kvstate.usage.sums import UsageSums
from shared.accounts.register import AccountRegister
from shared.limits.windows import Timed, Window, zone_of


class UsedBySums:
    """Implements `UsedSoFar`.

    Args:
        sums: By days of the tenants' time zones.
        register: Knows the time zones.
    """

    def __init__(self, sums: UsageSums, register: AccountRegister) -> None:
        self._sums = sums
        self._register = register

    async def used(self, tenant: str, key_id: str, kind: Timed, window: Window) -> Used:
        """See `UsedSoFar.used`."""
        record = self._register.tenant(tenant)
        zone = zone_of("UTC" if record is None else record.time_zone)

        def day_at(at_ms: int) -> date:
            return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone).date()

        last = day_at(window.ends_ms) - timedelta(days=1)
        found = self._sums.used(tenant, key_id, day_at(window.began_ms).isoformat(), last.isoformat())
        return Used(*found)
