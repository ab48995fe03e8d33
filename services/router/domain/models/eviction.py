"""Which groups may be stopped for the memory of another model, and which of them first. Pure.

Idle groups are evicted. Busy ones are only rotated out: they are drained for a model that waited too long,
and only after they ran for a quantum.
"""

from collections.abc import Collection, Sequence

from services.router.domain.models.control_state import GroupState
from services.router.domain.models.host_plan import HostPlan

LEAST_STAY_S = 2.0  # a group stays ready at least so long, or as long as its load took
LEAST_QUANTUM_S = 5.0  # a busy group stays ready at least so long
QUANTUM_LOADS = 3.0  # and so many times as long as its load took
AWAITS_FIRST_REQUEST_S = 10.0  # a group that was not used yet: the request that it was loaded for comes soon


def is_idle(plan: HostPlan, group: GroupState, wanted: Collection[str]) -> bool:
    """Whether a group may be stopped without a loss to callers: it has no work, and none is on its way.

    A group of a model with demand (`wanted`) is not idle: requests are about to come.
    """
    return (
        group.ready
        and not group.busy
        and group.model not in wanted
        and (group.served or group.ready_s >= AWAITS_FIRST_REQUEST_S)
        and group.ready_s >= max(group.load_s, LEAST_STAY_S)
        and plan.excess(group.model) > 0
    )


def may_rotate(plan: HostPlan, group: GroupState) -> bool:
    """Whether a group has run long enough to be drained for a model that waited too long."""
    return (
        group.ready
        and (group.served or group.ready_s >= AWAITS_FIRST_REQUEST_S)
        and group.ready_s >= max(QUANTUM_LOADS * group.load_s, LEAST_QUANTUM_S)
        and plan.excess(group.model) > 0
    )


def idle_groups(plan: HostPlan, wanted: Collection[str]) -> list[GroupState]:
    """Groups that may be evicted: the model of the least value first, and of each its youngest group."""
    idle = [group for group in plan.running if is_idle(plan, group, wanted)]
    values = {
        group.model: min(_value(plan, one) for one in idle if one.model == group.model) for group in idle
    }
    return sorted(idle, key=lambda group: (values[group.model], group.model, group.ready_s, group.name))


def rotatable_groups(plan: HostPlan) -> list[GroupState]:
    """Groups that may be drained: of models that keep another one first, then what was ready longest."""
    groups = [group for group in plan.running if may_rotate(plan, group)]
    ready = [group.model for group in plan.running if group.ready]
    return sorted(groups, key=lambda group: (ready.count(group.model) == 1, -group.ready_s, group.name))


def cost(plan: HostPlan, victims: Sequence[GroupState]) -> tuple[int, float]:
    """What an eviction costs: the highest priority, and the loads that will be needed again, by chance."""
    return (
        max(plan.offers[group.model].priority for group in victims),
        sum(_reload_s(group) for group in victims),
    )


def fewest(plan: HostPlan, candidates: Sequence[GroupState], need_bytes: int) -> list[GroupState]:
    """The first candidates that make room for `need_bytes` together, without those that are not needed.

    Empty if all of them together do not make enough room.
    """
    chosen: list[GroupState] = []
    for group in candidates:
        if plan.coming_after(chosen) >= need_bytes:
            break
        if sum(one.model == group.model for one in chosen) < plan.excess(group.model):
            chosen.append(group)
    if plan.coming_after(chosen) < need_bytes:
        return []
    for group in reversed(chosen):
        others = [one for one in chosen if one is not group]
        if plan.coming_after(others) >= need_bytes:
            chosen = others
    return chosen


def _value(plan: HostPlan, group: GroupState) -> tuple[int, float]:
    return plan.offers[group.model].priority, _reload_s(group) / max(group.charged_bytes, 1)


def _reload_s(group: GroupState) -> float:
    """Time of a load, times the chance that it is needed: a model used lately is used again sooner."""
    return max(group.load_s, 0.001) / max(group.idle_s, 1.0)
