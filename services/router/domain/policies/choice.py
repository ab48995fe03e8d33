"""Makes the decision for any request: by the policy, or for resumed and urgent requests apart from it.

A resumed request was accepted before and its caller waits in mid-stream. It goes where it starts soonest, a
full group included. A request of higher priority that finds all groups full goes to the least loaded one,
whose leader decides what makes room. So do some requests of equal priority when there are several tenants
(`contests.py`), because the router does not know which tenant holds the places.
"""

from msgspec.structs import replace

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.policies.base import Policy, least_loaded, no_ready_group
from services.router.domain.policies.pinned import choose_pinned


class ResumedPolicy:
    """Sends a resumed request where it starts first, to a full group if need be."""

    name = "resumed"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if not fleet.ready:
            return no_ready_group(fleet)
        return Assignment(_least(request.routing_key, fleet).name, "resumed")


_RESUMED = ResumedPolicy()


def choose(
    request: RequestFacts, fleet: FleetView, now: float, *, policy: Policy, pinned: str = ""
) -> Decision:
    """The decision for any request; see the module's text.

    Args:
        request: The facts.
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
    return Assignment((bound or _least(request.routing_key, fleet)).name, reason)


def _least(key: str, fleet: FleetView) -> GroupView:
    """The least loaded group with a place left, else the least loaded of all."""
    groups = [group for group in fleet.ready if not group.full]
    if groups:
        return least_loaded(key, groups)
    roomy = [replace(group, capacity=group.running + group.waiting + 1) for group in fleet.ready]
    return least_loaded(key, roomy)
