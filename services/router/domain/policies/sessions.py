"""Policies that keep a session on one group: sticky (A), state server (C), hybrid session-aware (D)."""

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, RequestFacts
from services.router.domain.policies.base import adapter_s, least_loaded, no_ready_group, refusal, starts_in
from services.router.domain.policies.costs import Costs, home_and_last
from services.router.domain.policies.hybrid_limits import HybridLimits


class Sticky:
    """Option A: the preferred group as long as it has a slot; load plays no part until it is full."""

    name = "sticky"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        home = fleet.home(request.routing_key)
        if home is None:
            return no_ready_group(fleet)
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
            return Assignment(_least(request, fleet).name, reason)
        return _stay_or_spill(request, fleet, home, "last_group")


class Hybrid:
    """Option D: where the session's KV is, unless another group serves the turn sooner with moving it.

    That group is the one of its last turn, or its home (the preferred group) if none is known. The session
    stays there while the group is not busy. A batch takes a hundred sequences at once, so a prompt can wait
    for seconds though the queue is empty. So the queue is measured in requests and in seconds; seconds and
    lead count only for a group that has measured its own speed.
    """

    name = "hybrid"

    def __init__(self, limits: HybridLimits | None = None, costs: Costs | None = None) -> None:
        self._limits = limits or HybridLimits()
        self._costs = costs or Costs()

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        home = fleet.home(request.routing_key)
        if home is None:
            return no_ready_group(fleet)
        stay, last = home_and_last(request, fleet, home)
        busy = self._busy(stay) or self._shared(request, stay)
        if not busy and not stay.full:
            return Assignment(stay.name, _resting(stay, home, last), home.name)
        if refused := refusal(fleet):
            return refused
        costs = self._costs
        least = least_loaded(
            request.routing_key,
            fleet.ready,
            (lambda group: costs.load_s(group) + adapter_s(request, group))
            if request.adapter
            else costs.load_s,
        )
        # the first of equals wins: a move must gain time
        open_groups = [group for group in _distinct(stay, home, least) if not group.full]
        if request.spent:
            open_groups = [g for g in open_groups if g.name not in request.spent] or open_groups
        chosen = open_groups[0]
        if len(open_groups) > 1:
            chosen = min(open_groups, key=lambda group: self._costs.total_s(request, group, last))
        if chosen is stay:
            return Assignment(stay.name, _resting(stay, home, last, "_busy"), home.name)
        if chosen is home:
            return Assignment(home.name, "return_home", home.name)
        return Assignment(chosen.name, "spill_full" if stay.full else busy, home.name)

    def _shared(self, request: RequestFacts, group: GroupView) -> str:
        """Why to leave a group to other parties, as a reason; an empty text if the session may stay."""
        return "spill_share" if group.waiting and group.name in request.spent else ""

    def _busy(self, group: GroupView) -> str:
        """Why to consider other groups, as a reason to choose one; an empty text if the session may stay."""
        limits = self._limits
        if group.waiting >= limits.router_threshold:
            return "spill_wait"
        if group.recompute_tokens_per_s:
            if group.wait_s >= limits.router_threshold_s:
                return "spill_wait"
            if group.running and group.lead_s >= limits.router_lead_s:
                return "spill_balance"
        return ""


def _distinct(stay: GroupView, home: GroupView, least: GroupView) -> list[GroupView]:
    """The groups in this order, each once."""
    groups = [stay] if home is stay else [stay, home]
    if least is not stay and least is not home:
        groups.append(least)
    return groups


def _resting(stay: GroupView, home: GroupView, last: GroupView | None, suffix: str = "") -> str:
    """The reason for leaving a session where it belongs."""
    if last is None:
        return "last_group_away"
    return ("preferred" if stay is home else "last_group") + suffix


def _stay_or_spill(request: RequestFacts, fleet: FleetView, home: GroupView, reason: str) -> Decision:
    if not home.full:
        return Assignment(home.name, reason, home.name)
    if refused := refusal(fleet):
        return refused
    return Assignment(_least(request, fleet).name, "spill_full", home.name)


def _least(request: RequestFacts, fleet: FleetView) -> GroupView:
    return least_loaded(request.routing_key, fleet.ready, starts_in(request))
