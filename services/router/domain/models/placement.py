"""On which host a claim is loaded, and what stops there for it. Pure.

A load that needs memory of other groups takes several decisions: one that stops them, then some that find
the memory still taken and reserve it, then one that starts the group.
"""

from collections.abc import Collection

from services.router.domain.models.claims import Claim
from services.router.domain.models.control_state import GroupState, Load, Stop
from services.router.domain.models.eviction import cost, fewest, idle_groups, rotatable_groups
from services.router.domain.models.host_plan import HostPlan


def place(claim: Claim, wanted: Collection[str]) -> list[Load | Stop]:
    """Loads the claimed group, makes room for it, or lets it wait.

    Args:
        claim: The next one in order; what earlier ones need is reserved in the plans.
        wanted: Models with demand; their groups are not evicted.
    """
    if has_room := [plan for plan in claim.plans if can_start(plan, claim.model)]:
        plan = min(has_room, key=lambda plan: (not plan.offers[claim.model].local, -plan.free_bytes))
        return [plan.load(claim.model, claim.reason)]
    if comes := [plan for plan in claim.plans if plan.coming_bytes >= plan.need_bytes(claim.model)]:
        # where memory is free, only the group that starts there is waited for
        plan = min(comes, key=lambda plan: (plan.free_bytes < plan.need_bytes(claim.model), plan.name))
        plan.reserve(claim.model)
        return []
    return _evict(claim, wanted) or _rotate(claim, wanted)


def can_start(plan: HostPlan, model: str) -> bool:
    """Whether a group can start at once, without memory of other groups and without reserved memory."""
    return not plan.starting and plan.need_bytes(model) <= min(plan.free_bytes, plan.coming_bytes)


def _evict(claim: Claim, wanted: Collection[str]) -> list[Load | Stop]:
    choices = []
    for plan in claim.plans:
        victims = fewest(plan, idle_groups(plan, wanted), plan.need_bytes(claim.model))
        if victims:
            choices.append((cost(plan, victims), plan.name, plan, victims))
    if not choices:
        return []
    _, _, plan, victims = min(choices, key=lambda choice: choice[:2])
    plan.reserve(claim.model)
    return [plan.stop(group, "evicted", claim.model) for group in victims]


def _rotate(claim: Claim, wanted: Collection[str]) -> list[Load | Stop]:
    if not claim.urgent:
        for plan in claim.plans:
            plan.awaited = True
        return []
    choices = []
    for plan in claim.plans:
        if plan.starting or plan.awaited:
            continue  # an earlier claim has its turn there; a group drained now would be missed for longer
        idle = idle_groups(plan, wanted)
        busy = [group for group in rotatable_groups(plan) if group not in idle]
        victims = fewest(plan, [*idle, *busy], plan.need_bytes(claim.model))
        if victims:
            drained = [group for group in victims if group not in idle]
            choices.append((_loss(drained), plan.name, plan, victims, drained))
    if not choices:
        # Memory is kept for it, or else small models would take what becomes free, one after another.
        plan = min(claim.plans, key=lambda plan: (plan.awaited, -plan.largest_room(), plan.name))
        plan.reserve(claim.model)
        return []
    _, _, plan, victims, drained = min(choices, key=lambda choice: choice[:2])
    plan.reserve(claim.model)
    return [plan.stop(group, "rotated" if group in drained else "evicted", claim.model) for group in victims]


def _loss(drained: list[GroupState]) -> tuple[int, float]:
    return len(drained), -max((group.ready_s for group in drained), default=0.0)
