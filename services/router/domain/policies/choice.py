"""Makes the decision for any request: by the policy, or for resumed and urgent requests apart from it.

A resumed request was accepted before and its caller waits in mid-stream. It goes where it starts soonest, a
full group included. A request of higher priority that finds all groups full goes to the least loaded one,
whose leader decides what makes room. So do some requests of equal priority when there are several tenants
(`parties.py`), because the router does not know which tenant holds the slots.
"""

from msgspec.structs import replace

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.policies.base import (
    Policy,
    least_loaded,
    no_ready_group,
    retry_after_s,
    starts_in,
)


def choose_pinned(
    pinned: str, policy: Policy, request: RequestFacts, fleet: FleetView, now: float
) -> Decision:
    """Returns what the policy would choose, unless the session is pinned to a group.

    A pin counts while its group is ready. If the group is full the turn is refused: the caller pinned the
    session to have that group and no other. If the group takes no requests at all (lost, draining, failed,
    unknown), the policy chooses until it is back, because the session's KV is in the store; the reason says
    so.
    """
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


class ResumedPolicy:
    """Sends a resumed request where it starts first, to a full group if need be."""

    name = "resumed"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if not fleet.ready:
            return no_ready_group(fleet)
        return Assignment(_least(request, fleet).name, "resumed")


_RESUMED = ResumedPolicy()


def choose(
    request: RequestFacts, fleet: FleetView, now: float, *, policy: Policy, pinned: str = ""
) -> Decision:
    """The decision for any request; see the module's text.

    Args:
        fleet: The groups of its model.
        now: Monotonic seconds.
        policy: Decides about requests that are neither pinned nor resumed.
        pinned: The group that the session is pinned to; empty: none.
    """
    urgent = request.resumed or request.priority > 0
    decision = choose_pinned(pinned, _RESUMED if request.resumed else policy, request, fleet, now)
    if not urgent or not isinstance(decision, Refusal) or decision.code != "overloaded":
        return decision
    return at_a_full_group(request, fleet, "urgent_full", pinned)


def at_a_full_group(request: RequestFacts, fleet: FleetView, reason: str, pinned: str = "") -> Assignment:
    """The group whose leader decides what makes room: the pinned one, or the least loaded.

    Raises:
        ValueError: no group is ready.
    """
    bound = fleet.find(pinned) if pinned else None
    return Assignment((bound or _least(request, fleet)).name, reason)


def _least(request: RequestFacts, fleet: FleetView) -> GroupView:
    """The least loaded group with a slot left, else the least loaded of all."""
    key, load_s = request.routing_key, starts_in(request)
    groups = [group for group in fleet.ready if not group.full]
    if groups:
        return least_loaded(key, groups, load_s)
    roomy = [replace(group, capacity=group.running + group.waiting + 1) for group in fleet.ready]
    return least_loaded(key, roomy, load_s)
