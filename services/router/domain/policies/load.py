"""The policy that looks at load alone."""

from services.router.domain.decision import Assignment, Decision, FleetView, RequestFacts
from services.router.domain.policies.base import least_loaded, refusal


class LeastLoaded:
    """The group that would start the request first, whatever session it belongs to."""

    name = "least_loaded"

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        if refused := refusal(fleet):
            return refused
        return Assignment(least_loaded(request.routing_key, fleet.ready).name, "least_loaded")
