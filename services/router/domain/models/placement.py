"""On which host a claim is loaded, and what gets smaller or stops there for it. Pure.

KV caches shrink first. If that is not enough, idle groups are evicted as well, and for a claim that waits too
long busy ones are drained.

A load that needs memory of other groups takes several decisions: one that takes it, then some that find
the memory still taken and reserve it, then one that starts the group.
"""

from collections.abc import Collection, Sequence

from services.router.domain.models.claims import Claim
from services.router.domain.models.control_state import Command, GroupState, Stop
from services.router.domain.models.eviction import (
    cost,
    fewest,
    idle_groups,
    rotatable_groups,
    shrink,
    shrinkable,
)
from services.router.domain.models.host_plan import HostPlan


def place(claim: Claim, wanted: Collection[str]) -> list[Command]:
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
    if (resized := _shrink(claim)) is not None:
        return resized
    return _evict(claim, wanted) or _rotate(claim, wanted)


def can_start(plan: HostPlan, model: str) -> bool:
    """Whether a group can start at once, without memory of other groups and without reserved memory."""
    return not plan.starting and plan.need_bytes(model) <= min(plan.free_bytes, plan.coming_bytes)


def _shrink(claim: Claim) -> list[Command] | None:
    """Lets KV caches give up what is lacking, and no group ends; None: that is not enough on any host."""
    now = {plan.name: sum(shrinkable(plan).values()) for plan in claim.plans}
    if able := [plan for plan in claim.plans if _lacking(plan, claim) <= now[plan.name]]:
        return _take(min(able, key=lambda plan: (_lacking(plan, claim), plan.name)), claim)
    for plan in claim.plans:
        if _lacking(plan, claim) <= sum(shrinkable(plan, soon=True).values()):
            plan.reserve(claim.model)
            return []
    return None


def _evict(claim: Claim, wanted: Collection[str]) -> list[Command]:
    choices = []
    for plan in claim.plans:
        idle = idle_groups(plan, wanted)
        victims = fewest(plan, idle, plan.need_bytes(claim.model), shrinkable(plan))
        if victims:
            choices.append((cost(plan, victims), plan.name, plan, victims))
    if not choices:
        return []
    _, _, plan, victims = min(choices, key=lambda choice: choice[:2])
    return _take(plan, claim, [plan.stop(group, "evicted", claim.model) for group in victims])


def _rotate(claim: Claim, wanted: Collection[str]) -> list[Command]:
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
        victims = fewest(plan, [*idle, *busy], plan.need_bytes(claim.model), shrinkable(plan))
        if victims:
            drained = [group for group in victims if group not in idle]
            choices.append((_loss(drained), plan.name, plan, victims, drained))
    if not choices:
        # Memory is kept for it, or else small models would take what becomes free, one after another.
        plan = min(claim.plans, key=lambda plan: (plan.awaited, -plan.largest_room(), plan.name))
        if not (plan.starting or plan.awaited):
            return _take(plan, claim)
        plan.reserve(claim.model)
        return []
    _, _, plan, victims, drained = min(choices, key=lambda choice: choice[:2])
    return _take(
        plan,
        claim,
        [plan.stop(group, "rotated" if group in drained else "evicted", claim.model) for group in victims],
    )


def _take(plan: HostPlan, claim: Claim, stops: Sequence[Stop] = ()) -> list[Command]:
    """Lets KV caches give up what is lacking beside these stops, and keeps the memory for the claim."""
    resized = shrink(plan, plan.need_bytes(claim.model), claim.model)
    plan.reserve(claim.model)
    return [*resized, *stops]


def _lacking(plan: HostPlan, claim: Claim) -> int:
    return plan.need_bytes(claim.model) - plan.coming_bytes


def _loss(drained: list[GroupState]) -> tuple[int, float]:
    return len(drained), -max((group.ready_s for group in drained), default=0.0)
