"""Pins: sessions whose turns all go to one group, whatever the policy would choose.

A pin counts while its group is ready. If that is full the turn is refused: whoever pins wants that group and
no other. A group that takes no requests at all (lost, draining, failed, unknown) would end the session, and
its KV is in the store, so the policy chooses until the group is back; the reason says so.
"""

from collections.abc import Iterable

from services.router.domain.decision import Assignment, Decision, FleetView, Refusal, RequestFacts
from services.router.domain.policies.base import Policy, retry_after_s

Pin = tuple[str, str, str]  # tenant, session id, group


class Pins:
    """The pins that are known, of all tenants; bounded. What was told lately stands against an older list."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._groups: dict[tuple[str, str], str] = {}
        self._told: dict[tuple[str, str], str] = {}  # since the list that is being loaded was asked for

    def __len__(self) -> int:
        return len(self._groups)

    def group_of(self, tenant: str, session_id: str) -> str:
        """The group that the session is bound to; empty: it is free."""
        return self._groups.get((tenant, session_id), "") if session_id else ""

    def tell(self, tenant: str, session_id: str, group: str) -> bool:
        """A pin changed; an empty group frees the session. False: there are too many to keep it."""
        if len(self._told) < self._max_entries or (tenant, session_id) in self._told:
            self._told[tenant, session_id] = group
        if not group:
            self._groups.pop((tenant, session_id), None)
            return True
        if len(self._groups) >= self._max_entries and (tenant, session_id) not in self._groups:
            return False
        self._groups[tenant, session_id] = group
        return True

    def begin_list(self) -> None:
        """The list of all pins is asked for now."""
        self._told.clear()

    def take_list(self, pins: Iterable[Pin]) -> bool:
        """The whole list; what was told since it was asked for is newer. False: it was cut at the limit."""
        groups = {(tenant, session_id): group for tenant, session_id, group in pins}
        groups.update(self._told)
        kept = [(key, group) for key, group in groups.items() if group]
        self._groups = dict(kept[: self._max_entries])
        return len(kept) <= self._max_entries


def choose_pinned(
    pinned: str, policy: Policy, request: RequestFacts, fleet: FleetView, now: float
) -> Decision:
    """What the policy would choose, unless the session is pinned; see the module's text."""
    if not pinned:
        return policy.choose(request, fleet, now)
    group = fleet.find(pinned)
    if group is None:
        decision = policy.choose(request, fleet, now)
        return (
            decision
            if isinstance(decision, Refusal)
            else Assignment(decision.group, "pin_away", decision.preferred_group)
        )
    if group.full:
        wait_s = retry_after_s(group.wait_s)
        return Refusal(
            "overloaded",
            "pin_full",
            f"group {pinned!r} is full, and the session is pinned to it (unpin it to have it go elsewhere)",
            wait_s,
        )
    home = fleet.home(request.routing_key)
    return Assignment(pinned, "pinned", home.name if home else "")
