"""Which sums of usage are over: older than the settings keep them, or than their tenant does. Pure."""

from datetime import date, timedelta

from services.kvstate.usage.stored_sums import SumName
from services.kvstate.usage.sums import UsageSums
from shared.accounts.register import AccountRegister


class KeptSums:
    """Finds sums that are over, once a day and after each change of a tenant's days.

    Args:
        register: Knows the days of tenants.
        keep_days: Those of the settings, which no tenant exceeds.
    """

    def __init__(self, register: AccountRegister, keep_days: int) -> None:
        self._register = register
        self._keep_days = keep_days
        self._seen: tuple[int, date] | None = None
        self._found: tuple[date, dict[str, str]] | None = None

    def forget(self) -> None:
        """The sums were read anew: all of them are looked at again."""
        self._seen = self._found = None

    def over(self, sums: UsageSums, today: date) -> list[SumName]:
        """Forgets days that the stream drops by itself; returns sums that are to be removed.

        The caller removes them from `sums`, and calls again until there are none.

        Args:
            sums: Those that are known.
            today: The day in UTC; that of a tenant's time zone may be one more or less.
        """
        seen = self._register.changed_at, today
        if seen == self._seen:
            return []
        oldest = {
            one.tenant: _first_day(one.usage_days, today)
            for one in self._register.tenants()
            if 0 < one.usage_days < self._keep_days
        }
        if self._found != (today, oldest):
            sums.forget_before(_first_day(self._keep_days, today))
            if over := sums.before(oldest):
                return over
        self._seen, self._found = seen, (today, oldest)
        return []


def _first_day(days: int, today: date) -> str:
    return (today - timedelta(days=days + 1)).isoformat()
