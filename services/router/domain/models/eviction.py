"""Which groups give memory to another model, and which of them first. Pure.

KV caches shrink before a group is stopped. A limit that was changed is kept for a while: a cache grows only
after a pause (`scaling.py`), and then shrinks again only once reports show what it took.
Idle groups are evicted. Busy ones are only rotated out: they are drained for a model that waited too long,
and only after they ran for a quantum.
"""

from collections.abc import Collection, Mapping, Sequence

from services.router.domain.models.control_state import GroupState, Resize
from services.router.domain.models.host_plan import HostPlan

LEAST_STAY_S = 2.0  # a group stays ready at least so long, or as long as its load took
LEAST_QUANTUM_S = 5.0  # a busy group stays ready at least so long
QUANTUM_LOADS = 3.0  # and so many times as long as its load took
SETTLE_S = 2.0  # after a change of its limit, until a cache shrinks
STEP_PART = 16  # of a cache: a smaller change is not worth the cached prefixes, or frees no whole pages
AWAITS_FIRST_REQUEST_S = 10.0  # a group that was not used yet: the request that it was loaded for comes soon


def shrinkable(plan: HostPlan, *, soon: bool = False) -> dict[str, int]:
    """What each group's cache can give up, by the group's name, in the order in which they do.

    Idle groups come first, then those of low priority, then those unused for longest.

    Args:
        plan: Their host.
        soon: Includes what can be given up when the last change has settled.
    """
    able = [group for group in plan.running if soon or group.kv.age_s >= SETTLE_S]
    spare = {
        group.name: spare_bytes(plan, group) for group in sorted(able, key=lambda one: cache_order(plan, one))
    }
    return {name: count for name, count in spare.items() if count}


def spare_bytes(plan: HostPlan, group: GroupState) -> int:
    """What a cache can give up at most: the rest is the model's minimum, or needed by running requests."""
    kv = group.kv
    if not group.ready or not kv.most_bytes or group.model not in plan.offers:
        return 0
    spare = plan.kv_limit(group) - max(kv.least_bytes, kv.needed_bytes)
    return spare if spare >= kv.most_bytes // STEP_PART else 0


def shrink(plan: HostPlan, need_bytes: int, wanted_by: str = "") -> list[Resize]:
    """Lowers limits until so much memory of the host will be free, or all are as low as they can be."""
    groups, resized = {group.name: group for group in plan.running}, []
    for name, spare in shrinkable(plan).items():
        lacking = need_bytes - plan.coming_bytes
        if lacking <= 0:
            break
        group = groups[name]
        cut = min(spare, max(lacking, group.kv.most_bytes // STEP_PART))
        resized.append(plan.resize(group, plan.kv_limit(group) - cut, wanted_by))
    return resized


def cache_order(plan: HostPlan, group: GroupState) -> tuple[bool, int, float, str]:
    """Sorts by what a cache is worth: that of an idle group of low priority, unused for long, comes first."""
    offer = plan.offers.get(group.model)
    return group.busy > 0, offer.priority if offer is not None else 0, -group.idle_s, group.name


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


def fewest(
    plan: HostPlan, candidates: Sequence[GroupState], need_bytes: int, spare: Mapping[str, int]
) -> list[GroupState]:
    """The first candidates that make room for `need_bytes` together, without those that are not needed.

    Empty if all of them together do not make enough room.

    Args:
        spare: What KV caches of groups that stay can give up beside, by the group's name.
    """
    chosen: list[GroupState] = []
    for group in candidates:
        if _room(plan, chosen, spare) >= need_bytes:
            break
        if sum(one.model == group.model for one in chosen) < plan.excess(group.model):
            chosen.append(group)
    if _room(plan, chosen, spare) < need_bytes:
        return []
    for group in reversed(chosen):
        others = [one for one in chosen if one is not group]
        if _room(plan, others, spare) >= need_bytes:
            chosen = others
    return chosen


def _room(plan: HostPlan, victims: Sequence[GroupState], spare: Mapping[str, int]) -> int:
    """What is free once these groups have ended, and the caches of the others are as small as they can be."""
    ending = [group.name for group in victims]
    return plan.coming_after(victims) + sum(count for name, count in spare.items() if name not in ending)


def _value(plan: HostPlan, group: GroupState) -> tuple[int, float]:
    return plan.offers[group.model].priority, _reload_s(group) / max(group.charged_bytes, 1)


def _reload_s(group: GroupState) -> float:
    """Time of a load, times the chance that it is needed: a model used lately is used again sooner."""
    return max(group.load_s, 0.001) / max(group.idle_s, 1.0)
