"""What all tenants share and one of them may not take alone: places, bodies under way, bytes. Pure.

Each is counted for all and for each tenant. Where there is one tenant it may have everything; where there are
several, one may have its share and no more, so that others always find some.
"""

import math

from shared.errors import Overloaded, RateLimited

RETRY_AFTER_S = 1.0


class Quota:
    """So many of one thing.

    share: the part of it that one tenant may have. what: the thing in words, after a number.
    reason: of the refusal when all is taken; with `tenant_` before it when the tenant's share is.
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
        """How many a tenant has."""
        return self._by_tenant.get(tenant, 0)

    def check(self, tenant: str, count: int = 1) -> None:
        """Raises what `take` would raise, and takes none."""
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

    def take(self, tenant: str, count: int = 1) -> None:
        """Takes `count` for a tenant, to be given back with `free`.

        Raises, and takes none:
            RateLimited: the tenant has its share.
            Overloaded: there are not so many left.
        """
        held = self._by_tenant.get(tenant, 0) + count
        if held > self.tenant_limit or self.taken + count > self.limit:
            self.check(tenant, count)
        self.taken += count
        self._by_tenant[tenant] = held

    def take_over(self, tenant: str, count: int = 1) -> None:
        """Takes them from another holder that frees them in a moment; there may be none left until then."""
        self.taken += count
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + count

    def free(self, tenant: str, count: int = 1) -> None:
        """Gives them back."""
        self.taken -= count
        held = self._by_tenant.get(tenant, 0) - count
        if held:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)
