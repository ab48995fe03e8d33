"""Policies that keep a session on one group: sticky (A), state server (C), hybrid session-aware (D)."""

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, RequestFacts
from services.router.domain.policy import least_loaded, refusal
from services.router.domain.rendezvous import preferred


class Sticky:
    """Option A: the preferred group as long as it has a place; load plays no part until it is full."""

    name = "sticky"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        home = preferred(request.routing_key, fleet.ready)
        return _stay_or_spill(request, fleet, home, "preferred")


class StateServer:
    """Option C: where the session was last served, as the session store knows it; else the least loaded."""

    name = "state_server"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        home = fleet.find(request.last_group) if request.last_group else None
        if home is None:
            reason = "last_group_away" if request.last_group else "new_session"
            return Assignment(least_loaded(request.routing_key, fleet.ready).name, reason)
        return _stay_or_spill(request, fleet, home, "last_group")


class Hybrid:
    """Option D: the preferred group, unless it makes the request wait longer than moving its session would.

    threshold: below so many waiting requests the preferred group is taken without a further look.
    assumed_tokens_per_s: the rate at which a group that has not told its own is taken to recompute a session.
    """

    name = "hybrid"

    def __init__(self, threshold: int = 2, assumed_tokens_per_s: float = 500.0) -> None:
        self._threshold = threshold
        self._assumed_tokens_per_s = assumed_tokens_per_s

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        home = preferred(request.routing_key, fleet.ready)
        if home.full or home.waiting < self._threshold:
            return _stay_or_spill(request, fleet, home, "preferred")
        other = least_loaded(request.routing_key, fleet.ready)
        if other is not home and other.wait_s + self._move_s(request, other) < home.wait_s:
            return Assignment(other.name, "spill_wait", home.name)
        return Assignment(home.name, "preferred_busy", home.name)

    def _move_s(self, request: RequestFacts, group: GroupView) -> float:
        """Seconds to have the session's KV on that group: today, to compute it there again."""
        return request.prompt_tokens / (group.tokens_per_s or self._assumed_tokens_per_s)


def _stay_or_spill(request: RequestFacts, fleet: FleetView, home: GroupView, reason: str) -> Assignment:
    if home.full:
        return Assignment(least_loaded(request.routing_key, fleet.ready).name, "spill_full", home.name)
    return Assignment(home.name, reason, home.name)
