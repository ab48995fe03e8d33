"""The limits that a request counts for: those of its tenant, and those of its key. Pure."""

from typing import NamedTuple

from shared.errors import InvalidRequest
from shared.limits.windows import zone_of
from shared.messages.tenants.accounts import Limits
from shared.messages.tenants.limits import Measure, WindowKind

# field of `Limits`, measure, window
_COUNTED: tuple[tuple[str, Measure, WindowKind], ...] = (
    ("requests_per_minute", "requests", "minute"),
    ("running", "running", "running"),
    ("tokens_per_minute", "tokens", "minute"),
    ("tokens_per_day", "tokens", "day"),
    ("tokens_per_month", "tokens", "month"),
    ("money_per_day", "money", "day"),
    ("money_per_month", "money", "month"),
)


class PoolName(NamedTuple):
    """One limit of a tenant, or of one of its keys.

    Attributes:
        key_id: Empty: of the tenant.
    """

    tenant: str
    key_id: str
    measure: Measure
    window: WindowKind

    @property
    def owner(self) -> str:
        """Whose limit it is, as the reasons of refusals begin."""
        return "key" if self.key_id else "tenant"

    @property
    def reason(self) -> str:
        """The reason of a refusal, such as `tenant_requests_per_minute`."""
        if self.window == "running":
            return f"{self.owner}_running"
        return f"{self.owner}_{self.measure}_per_{self.window}"


class Pool(NamedTuple):
    """A limit with its size and the time zone of its days."""

    name: PoolName
    limit: int
    time_zone: str


def pools_of(limits: Limits, tenant: str, key_id: str, time_zone: str) -> list[Pool]:
    """Returns the limits of a tenant or a key that are counted in portions; those of 0 are none.

    Args:
        limits: Of the tenant or the key.
        tenant: Its name; of a key, that of its tenant.
        key_id: Empty: they are the tenant's.
        time_zone: Of the tenant; an unknown one counts as UTC.
    """
    try:
        zone_of(time_zone)
    except InvalidRequest:  # of this machine's data base; the record was checked when it was made
        time_zone = "UTC"
    return [
        Pool(PoolName(tenant, key_id, measure, window), getattr(limits, field), time_zone)
        for field, measure, window in _COUNTED
        if getattr(limits, field) > 0
    ]
