"""Quotas of what callers share: places, bodies under way, bytes. Pure.

Units are counted for all parties together and for each of them. A party is a tenant or, without keys, an
address (`parties.py`). It may have its share and no more, so that others always find some; a single tenant,
and the party without a name, may have everything.
"""

import math

from shared.errors import Overloaded, RateLimited

RETRY_AFTER_S = 1.0


class Quota:
    """A limited number of units of one kind.

    Args:
        limit: How many units there are.
        share: The part of them that one party may have.
        what: The units in words, to be read after a number.
        reason: The reason of a refusal when all units are taken; `tenant_` comes before it when the share of
            the party is.
        setting: The setting that decides the share, for a refusal.
    """

    def __init__(
        self,
        limit: int,
        *,
        share: float,
        what: str = "requests under way",
        reason: str = "gateway_concurrency",
        setting: str = "RYZ_TENANT_SHARE",
    ) -> None:
        self.limit = limit
        self.party_limit = limit
        self.taken = 0
        self._what = what
        self._reason = reason
        self._held: dict[str, int] = {}
        self.set_share(share, setting)

    def set_share(self, share: float, setting: str) -> None:
        """Sets the part of the units that one party may have; what it has beyond it stays until it is freed.

        Args:
            share: The part.
            setting: The setting that decides it.
        """
        self.party_limit = min(self.limit, max(1, math.ceil(self.limit * share)))
        self._setting = setting

    def held_by(self, party: str) -> int:
        """The number of units that a party has."""
        return self._held.get(party, 0)

    def check_units(self, party: str, count: int = 1) -> None:
        """Raises what `take_units` would raise, and takes none."""
        held = self._held.get(party, 0)
        over = held + count > self.party_limit and party != ""
        if not over and self.taken + count <= self.limit:
            return
        if over and self.party_limit < self.limit:
            raise RateLimited(
                f"{party!r} has {held} {self._what} at this gateway and may have {self.party_limit} of its "
                f"{self.limit} ({self._setting}); retry in a moment",
                reason=f"tenant_{self._reason}",
                retry_after_s=RETRY_AFTER_S,
            )
        raise Overloaded(
            f"this gateway has {self.taken} {self._what} and may have {self.limit}; retry in a moment",
            reason=self._reason,
            retry_after_s=RETRY_AFTER_S,
        )

    def take_units(self, party: str, count: int = 1) -> None:
        """Takes `count` units for a party, to be given back with `free_units`.

        Raises:
            RateLimited: The party has its share; none is taken.
            Overloaded: Too few are left; none is taken.
        """
        held = self._held.get(party, 0) + count
        if held > self.party_limit or self.taken + count > self.limit:
            self.check_units(party, count)
        self.taken += count
        self._held[party] = held

    def take_over_units(self, party: str, count: int = 1) -> None:
        """Takes units that another holder frees in a moment; until then more than `limit` may be taken."""
        self.taken += count
        self._held[party] = self._held.get(party, 0) + count

    def free_units(self, party: str, count: int = 1) -> None:
        """Gives units back."""
        self.taken -= count
        held = self._held.get(party, 0) - count
        if held:
            self._held[party] = held
        else:
            self._held.pop(party, None)
