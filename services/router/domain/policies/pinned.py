"""Applies a pin: all turns of a pinned session go to one group, whatever the policy would choose.

A pin counts while its group is ready. If the group is full the turn is refused: the caller pinned the session
to have that group and no other. If the group takes no requests at all (lost, draining, failed, unknown), the
policy chooses until it is back, because the session's KV is in the store; the reason says so.
"""

from services.router.domain.decision import Assignment, Decision, FleetView, Refusal, RequestFacts
from services.router.domain.policies.base import Policy, retry_after_s


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
