"""The policies by name. `hybrid` is the default; the others are for special fleets, and to compare with."""

from typing import Literal

from services.router.domain.policies.load import LeastLoaded
from services.router.domain.policies.sessions import Hybrid, StateServer, Sticky
from services.router.domain.policies.turns import RoundRobin, Weighted
from services.router.domain.policy import Policy

PolicyName = Literal["round_robin", "weighted", "least_loaded", "sticky", "state_server", "hybrid"]


def make_policy(name: PolicyName, *, threshold: int = 2, assumed_tokens_per_s: float = 500.0) -> Policy:
    """The policy of that name; the options are those of `Hybrid`."""
    match name:
        case "round_robin":
            return RoundRobin()
        case "weighted":
            return Weighted()
        case "least_loaded":
            return LeastLoaded()
        case "sticky":
            return Sticky()
        case "state_server":
            return StateServer()
        case "hybrid":
            return Hybrid(threshold, assumed_tokens_per_s)


__all__ = [
    "Hybrid",
    "LeastLoaded",
    "PolicyName",
    "RoundRobin",
    "StateServer",
    "Sticky",
    "Weighted",
    "make_policy",
]
