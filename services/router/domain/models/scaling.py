"""When a model that runs gets one more group, and when the KV caches of its groups grow again. Pure."""

from collections.abc import Collection, Sequence

from services.router.domain.models.claims import may_start
from services.router.domain.models.control_state import Load, Resize
from services.router.domain.models.eviction import STEP_PART, cache_order
from services.router.domain.models.host_plan import HostPlan
from services.router.domain.models.placement import can_start

KEEP_S = 10.0  # after a change of its limit, until a cache grows
MARGIN_PART = 32  # of the budget: caches do not grow into it, since the budget itself goes up and down


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


def grow(plan: HostPlan) -> list[Resize]:
    """Raises limits where memory is free and nothing waits for it: of high priority and in use first."""
    if plan.starting or plan.awaited or plan.is_ending:
        return []
    resized = []
    free = plan.coming_bytes - plan.budget_bytes // MARGIN_PART
    for group in sorted(plan.running, key=lambda one: cache_order(plan, one), reverse=True):
        kv = group.kv
        if not group.ready or group.model not in plan.offers or kv.age_s < KEEP_S:
            continue
        limit = plan.kv_limit(group)
        more = min(kv.most_bytes - limit, free)
        if more > 0 and (more >= kv.most_bytes // STEP_PART or limit + more == kv.most_bytes):
            resized.append(plan.resize(group, limit + more))
            free -= more
    return resized


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
