"""What stands before a policy: resumed requests, and urgent ones that find every group full.

A resumed request was accepted once and its caller waits in mid-stream: it goes where it starts soonest, and a
full group is no reason to refuse it. A request of higher priority is not turned away by an estimate, either:
the group that has the least to do gets it, and its leader decides what has to make room.
The same goes for some requests of equal priority when there are several tenants (`contests.py`): the router
cannot tell which of them holds the places.
"""

from msgspec.structs import replace

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.policies.base import Policy, least_loaded, nobody
from services.router.domain.policies.pinned import choose_pinned


class ResumedPolicy:
    """The group that would start the request first, a full one if need be; where its session was is over."""

    name = "resumed"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if not fleet.ready:
            return nobody(fleet)
        return Assignment(_least(request.routing_key, fleet).name, "resumed")


_RESUMED = ResumedPolicy()


def choose(
    request: RequestFacts, fleet: FleetView, now: float, *, policy: Policy, pinned: str = ""
) -> Decision:
    """The decision for any request; see the module's text.

    pinned: the group that the session is bound to; empty: it is free.
    """
    urgent = request.resumed or request.priority > 0
    decision = choose_pinned(pinned, _RESUMED if request.resumed else policy, request, fleet, now)
    if not urgent or not isinstance(decision, Refusal) or decision.code != "overloaded":
        return decision
    return at_a_full_group(request, fleet, "urgent_full", pinned)


def at_a_full_group(request: RequestFacts, fleet: FleetView, reason: str, pinned: str = "") -> Assignment:
    """The group whose leader is to decide what has to make room: the one it is bound to, or the least loaded.

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
