"""The policies by name. `hybrid` is the default; the others are for special fleets, and to compare with."""

from typing import Literal

from services.router.domain.policies.base import Policy
from services.router.domain.policies.costs import Costs
from services.router.domain.policies.hybrid_limits import HybridLimits
from services.router.domain.policies.sessionless import LeastLoaded, RoundRobin, WeightedRoundRobin
from services.router.domain.policies.sessions import Hybrid, StateServer, Sticky

PolicyName = Literal["round_robin", "weighted", "least_loaded", "sticky", "state_server", "hybrid"]


def make_policy(name: PolicyName, limits: HybridLimits | None = None, costs: Costs | None = None) -> Policy:
    """The policy of that name; limits and costs are those of `Hybrid`."""
    match name:
        case "round_robin":
            return RoundRobin()
        case "weighted":
            return WeightedRoundRobin()
        case "least_loaded":
            return LeastLoaded()
        case "sticky":
            return Sticky()
        case "state_server":
            return StateServer()
        case "hybrid":
            return Hybrid(limits, costs)


__all__ = [
    "Hybrid",
    "HybridLimits",
    "LeastLoaded",
    "PolicyName",
    "RoundRobin",
    "StateServer",
    "Sticky",
    "WeightedRoundRobin",
    "make_policy",
]
