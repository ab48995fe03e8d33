"""Policies that know no sessions: round-robin, weighted by the groups' share, and the least-loaded group."""

from services.router.domain.decision import Assignment, Decision, FleetView, RequestFacts
from services.router.domain.policies.base import least_loaded, refusal, starts_in


class RoundRobin:
    """One group after another, in the order of their names; full ones are passed over."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last: dict[str, str] = {}  # by model; bounded by the models that groups ever served

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        last = self._last.get(request.model, "")
        names = [group.name for group in fleet.ready if not group.full]
        name = next((name for name in names if name > last), names[0])
        self._last[request.model] = name
        return Assignment(name, "turn")


class WeightedRoundRobin:
    """Turns in proportion to the groups' weights, evenly spread: the smooth weighted round-robin of nginx.

    Each turn every group gains its weight in credit; the one with most credit goes, and pays the sum of all
    weights.
    """

    name = "weighted"

    def __init__(self) -> None:
        self._credit: dict[str, dict[str, float]] = {}  # model -> group -> credit; only groups that are ready

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        known = self._credit.get(request.model, {})
        free = [group for group in fleet.ready if not group.full]
        credit = {group.name: known.get(group.name, 0.0) for group in fleet.ready}
        for group in free:
            credit[group.name] += group.weight
        chosen = max(free, key=lambda group: credit[group.name])
        credit[chosen.name] -= sum(group.weight for group in free)
        self._credit[request.model] = credit
        return Assignment(chosen.name, "turn")


class LeastLoaded:
    """The group that would start the request first, whatever session it belongs to."""

    name = "least_loaded"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        chosen = least_loaded(request.routing_key, fleet.ready, starts_in(request))
        return Assignment(chosen.name, "least_loaded")
