"""Quotas of what tenants share: places, bodies under way, bytes. Pure.

Units are counted for all tenants together and for each of them. A tenant may have its share and no more, so
that others always find some; a single tenant may have everything.
"""

import math

from shared.errors import Overloaded, RateLimited

RETRY_AFTER_S = 1.0


class Quota:
    """A limited number of units of one kind.

    Args:
        limit: How many units there are.
        share: The part of them that one tenant may have.
        what: The units in words, to be read after a number.
        reason: The reason of a refusal when all units are taken; `tenant_` comes before it when the share of
            the tenant is.
    """

    def __init__(
        self,
        limit: int,
        *,
        share: float = 1.0,
        what: str = "requests under way",
        reason: str = "gateway_concurrency",
    ) -> None:
        self.limit = limit
        self.tenant_limit = min(limit, max(1, math.ceil(limit * share)))
        self.taken = 0
        self._what = what
        self._reason = reason
        self._by_tenant: dict[str, int] = {}

    def held_by(self, tenant: str) -> int:
        """The number of units that a tenant has."""
        return self._by_tenant.get(tenant, 0)

    def check_units(self, tenant: str, count: int = 1) -> None:
        """Raises what `take_units` would raise, and takes none."""
        held = self._by_tenant.get(tenant, 0)
        if held + count <= self.tenant_limit and self.taken + count <= self.limit:
            return
        if held + count > self.tenant_limit < self.limit:
            raise RateLimited(
                f"{tenant!r} has {held} {self._what} at this gateway and may have {self.tenant_limit} of its "
                f"{self.limit} (RYZ_TENANT_SHARE); retry in a moment",
                reason=f"tenant_{self._reason}",
                retry_after_s=RETRY_AFTER_S,
            )
        raise Overloaded(
            f"this gateway has {self.taken} {self._what} and may have {self.limit}; retry in a moment",
            reason=self._reason,
            retry_after_s=RETRY_AFTER_S,
        )

    def take_units(self, tenant: str, count: int = 1) -> None:
        """Takes `count` units for a tenant, to be given back with `free_units`.

        Raises:
            RateLimited: The tenant has its share; none is taken.
            Overloaded: Too few are left; none is taken.
        """
        held = self._by_tenant.get(tenant, 0) + count
        if held > self.tenant_limit or self.taken + count > self.limit:
            self.check_units(tenant, count)
        self.taken += count
        self._by_tenant[tenant] = held

    def take_over_units(self, tenant: str, count: int = 1) -> None:
        """Takes units that another holder frees in a moment; until then more than `limit` may be taken."""
        self.taken += count
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + count

    def free_units(self, tenant: str, count: int = 1) -> None:
        """Gives units back."""
        self.taken -= count
        held = self._by_tenant.get(tenant, 0) - count
        if held:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)
