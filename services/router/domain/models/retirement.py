"""Which groups of a host are stopped for their own sake, not for another model's memory. Pure."""

from collections.abc import Collection

from services.router.domain.models.control_state import Command, GroupState, Stop
from services.router.domain.models.eviction import idle_groups, is_idle, shrink
from services.router.domain.models.host_plan import HostPlan


def retire(plan: HostPlan, wanted: Collection[str]) -> list[Command]:
    """Stops what an operator wants gone, what is too many, and what was not used for long.

    The plan then knows what stops. Groups of models with demand (`wanted`) are not idle.
    """
    stops: list[Command] = []
    for model in plan.offers:
        stops += _surplus(plan, model)
        stops += _unused(plan, model, wanted)
    return stops + _over_budget(plan, wanted)


def _surplus(plan: HostPlan, model: str) -> list[Stop]:
    offer, groups = plan.offers[model], plan.running_of(model)
    if offer.wish == "unload":
        return [plan.stop(group, "wish") for group in groups]
    # a group that starts has no work, and may be needed least: the others take requests already
    by_work = sorted(groups, key=lambda group: (not group.starting, group.busy, group.ready_s, group.name))
    return [plan.stop(group, "surplus") for group in by_work[: max(0, len(groups) - offer.most_groups)]]


def _unused(plan: HostPlan, model: str, wanted: Collection[str]) -> list[Stop]:
    offer = plan.offers[model]
    stops = []
    for group in sorted(plan.running_of(model), key=_youngest_first):
        if not is_idle(plan, group, wanted):
            continue
        if offer.wish == "sleep":
            stops.append(plan.stop(group, "wish"))
        elif offer.sleep_ms and group.idle_s >= offer.sleep_ms / 1000:
            stops.append(plan.stop(group, "idle"))
    return stops


def _over_budget(plan: HostPlan, wanted: Collection[str]) -> list[Command]:
    """Groups may grow after their start: KV caches get smaller then, or else idle groups end."""
    resized = shrink(plan, 0)
    stops: list[Stop] = []
    for group in idle_groups(plan, wanted):
        if plan.coming_bytes >= 0:
            break
        if plan.excess(group.model):
            stops.append(plan.stop(group, "evicted"))
    ended = {stop.group for stop in stops}
    return [*(one for one in resized if one.group not in ended), *stops]


def _youngest_first(group: GroupState) -> tuple[float, str]:
    return group.ready_s, group.name
