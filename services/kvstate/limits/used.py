"""What tenants and keys have used of a day or a month, from another account than the leases.

Leases are counted in Redis, which may be emptied at any time; sums of usage outlive that.
"""

from typing import NamedTuple, Protocol

from shared.limits.windows import Timed, Window


class Used(NamedTuple):
    """Tokens, and money in millionths of the currency."""

    tokens: int
    money: int


class UsedSoFar(Protocol):
    """Sums of usage by tenant, key and window."""

    async def used(self, tenant: str, key_id: str, kind: Timed, window: Window) -> Used:
        """Returns what was used in a day or a month so far, as far as it is known.

        Args:
            tenant: Whose usage.
            key_id: Of one of its keys; empty: of all.
            kind: `day` or `month`.
            window: The window, which begins at midnight of the tenant's time zone.
        """
        ...


class NothingUsed:
    """Implements `UsedSoFar` where no sums are kept."""

    async def used(self, tenant: str, key_id: str, kind: Timed, window: Window) -> Used:
        """See `UsedSoFar.used`."""
        return Used(0, 0)
