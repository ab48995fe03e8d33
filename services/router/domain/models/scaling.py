"""When a model that runs gets one more group. Pure."""

from collections.abc import Collection, Sequence

from services.router.domain.models.claims import may_start
from services.router.domain.models.control_state import Load
from services.router.domain.models.host_plan import HostPlan
from services.router.domain.models.placement import can_start


def scale_up(plans: Sequence[HostPlan], wanted: Collection[str]) -> list[Load]:
    """Starts groups of models whose groups all let requests wait, in memory that nothing else wants.

    The plans have all claims placed already. A model with demand (`wanted`) has its claim among them.
    """
    queues = {model: _shortest_queue(plans, model) for plan in plans for model in plan.offers}
    loads = []
    for model in sorted(queues, key=lambda model: (-_priority(plans, model), -queues[model], model)):
        if not queues[model] or model in wanted:
            continue
        able = [plan for plan in plans if _may_grow(plan, model)]
        if able:
            plan = min(able, key=lambda plan: (not plan.running_of(model), -plan.free_bytes, plan.name))
            loads.append(plan.load(model, "queue"))
    return loads


def _shortest_queue(plans: Sequence[HostPlan], model: str) -> int:
    """Requests that wait at the group with the fewest; 0 while one is not ready, which will take some."""
    if any(plan.loading == model for plan in plans):
        return 0
    groups = [group for plan in plans for group in plan.running_of(model)]
    return min((group.waiting if group.ready else 0 for group in groups), default=0)


def _may_grow(plan: HostPlan, model: str) -> bool:
    return (
        may_start(plan, model)
        and plan.offers[model].wish != "sleep"
        and not plan.awaited
        and can_start(plan, model)
    )


def _priority(plans: Sequence[HostPlan], model: str) -> int:
    return max(plan.offers[model].priority for plan in plans if model in plan.offers)
