"""The contract of a policy, and what all share: the refusals, and what the least-loaded group is.

A policy never sees a group that is lost, tripped or draining (`FleetView.ready` leaves them out), and never
chooses one that is full. How to build one by its name is in `policies/__init__.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from services.router.domain.decision import Decision, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.rendezvous import score

RETRY_STARTING_S = 1.0
RETRY_MIN_S = 0.1
RETRY_MAX_S = 30.0


class Policy(Protocol):
    """Chooses a group. Equal requests and fleets give equal decisions, but for policies that take turns."""

    name: str

    def choose(self, request: RequestFacts, fleet: FleetView, now: float) -> Decision:
        """An assignment to a ready group that is not full, or a refusal. `now` is monotonic seconds."""
        ...


def refusal(fleet: FleetView) -> Refusal | None:
    """Why nobody can take a request for this model, or None when somebody can."""
    if not fleet.ready:
        return _nobody(fleet)
    if all(group.full for group in fleet.ready):
        wait = min(group.wait_s for group in fleet.ready)
        retry_after_s = round(min(RETRY_MAX_S, max(RETRY_MIN_S, wait)), 3)
        count = len(fleet.ready)
        return Refusal(
            "overloaded",
            "all_full",
            f"all {count} groups of model {fleet.model!r} are full; retry in {retry_after_s:g} s",
            retry_after_s,
        )
    return None


def _nobody(fleet: FleetView) -> Refusal:
    if not fleet.away:
        served = ", ".join(fleet.models) or "none at the moment"
        return Refusal(
            "model_not_found",
            "unknown_model",
            f"no group serves model {fleet.model!r}; models that are served: {served}",
            param="model",
        )
    states = ", ".join(f"{name} is {state}" for name, state in sorted(fleet.away.items()))
    return Refusal(
        "unavailable",
        "no_group",
        f"no group of model {fleet.model!r} is ready ({states}); retry in {RETRY_STARTING_S:g} s",
        RETRY_STARTING_S,
    )


def least_loaded(key: str, groups: Sequence[GroupView]) -> GroupView:
    """The group that would start the request first; among equals the less used, then the one the key prefers.

    Raises:
        ValueError: all groups are full, or there are none.
    """
    free = [group for group in groups if not group.full]
    return min(free, key=lambda g: (g.wait_s, g.utilization, -score(key, g.name, g.weight), g.name))
