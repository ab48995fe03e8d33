"""Which models want a group, and which of them comes first. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.router.domain.models.control_state import Demand, LoadReason
from services.router.domain.models.host_plan import HostPlan

LEAST_PATIENCE_S = 5.0  # demand waits so long before a busy group is drained for it
PATIENCE_LOADS = 3.0  # or so many times as long as its load takes


@dataclass(frozen=True, slots=True)
class Claim:
    """A model that wants one more group.

    Attributes:
        plans: Hosts that may start it, by name; on each of them it can fit once other models make room.
        urgent: Busy groups may be drained for it, and free memory is reserved for it.
    """

    model: str
    reason: LoadReason
    plans: tuple[HostPlan, ...]
    priority: int
    waited_s: float
    urgent: bool


def claims(plans: Sequence[HostPlan], demand: Mapping[str, Demand]) -> list[Claim]:
    """What is to be loaded, in order.

    Wishes and least numbers come first, then demand that waited too long, then other demand by priority.
    Demand that waited too long has its turn whatever its priority, so that no model starves.
    """
    found = [claim for plan in plans for claim in _of_operator(plan)]
    for model, waiting in demand.items():
        elsewhere = [
            plan for plan in plans if all((one.model, one.plans) != (model, (plan,)) for one in found)
        ]
        found += _of_demand(plans, elsewhere, model, waiting)
    return sorted(found, key=_order)


def may_start(plan: HostPlan, model: str) -> bool:
    """Whether a host may start one more group of a model, if it has the memory."""
    offer = plan.offers.get(model)
    return (
        offer is not None
        and offer.wish != "unload"
        and not offer.retry_ms
        and len(plan.running_of(model)) < offer.most_groups
    )


def can_ever_fit(plan: HostPlan, model: str) -> bool:
    """Whether one more group of a model fits beside what is never stopped for it."""
    return plan.need_bytes(model) <= plan.largest_room()


def _of_operator(plan: HostPlan) -> list[Claim]:
    found = []
    for model, offer in plan.offers.items():
        if not (may_start(plan, model) and can_ever_fit(plan, model)):
            continue
        running = len(plan.running_of(model))
        if offer.wish == "load" and not running:
            found.append(Claim(model, "wish", (plan,), offer.priority, 0.0, urgent=True))
        elif running < offer.least_groups:
            found.append(Claim(model, "least", (plan,), offer.priority, 0.0, urgent=True))
    return found


def _of_demand(
    plans: Sequence[HostPlan], elsewhere: Sequence[HostPlan], model: str, demand: Demand
) -> list[Claim]:
    """The claim of a model with demand; in `elsewhere` are the hosts on which it has no other claim."""
    if any(plan.running_of(model) for plan in plans):
        return []  # one takes requests, or soon will
    able = tuple(plan for plan in elsewhere if may_start(plan, model) and can_ever_fit(plan, model))
    if not able:
        return []
    offers = [plan.offers[model] for plan in able]
    load_s = max(offer.load_ms for offer in offers) / 1000
    patience_s = max(LEAST_PATIENCE_S, PATIENCE_LOADS * load_s)
    priority = max(offer.priority for offer in offers)
    return [Claim(model, "demand", able, priority, demand.waited_s, demand.waited_s >= patience_s)]


def _order(claim: Claim) -> tuple[bool, float, int, float, bool, str, str]:
    by_operator = claim.reason != "demand"
    overdue_s = claim.waited_s if claim.urgent else 0.0
    return (
        not by_operator,
        -overdue_s,
        -claim.priority,
        -claim.waited_s,
        claim.reason != "wish",
        claim.model,
        claim.plans[0].name,
    )
