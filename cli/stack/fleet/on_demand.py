"""Plans a stack whose models come and go: what each takes when it is loaded, and what all may take. Pure.

Models that are loaded with the stack fit beside each other. Each of the others fits as if it were alone, and
takes the place of idle ones if need be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cli.stack.fleet.entry import FoundModel
from cli.stack.memory_needs import (
    MEMORY_SHARE,
    STORE_OVERHEAD,
    MachineFacts,
    ModelNeeds,
    group_bytes,
    own_weight_bytes,
    reading_bytes,
)
from cli.stack.sizing import STORE_PART, DoesNotFit, Sizing, choose_sizings, sizings_of

# KV of a group, in tokens, if nothing else is said: with that of a model that has the machine for itself
# (65,536) there would be no room for a second model
DEMAND_KV_TOKENS = 16_384
NULL_GROUP_BYTES = 96 * 2**20  # of the null engine: a leader and the process of its heartbeats


class TooLargeAlone(Exception):
    """The model at this position does not fit, although it would be alone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class TooManyAtStart(Exception):
    """The models that are loaded with the stack do not fit beside each other; with the memory for groups."""

    def __init__(self, machine: MachineFacts) -> None:
        super().__init__()
        self.machine = machine


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """Memory that a group takes at its peak, with its KV cache full.

    Attributes:
        first: While no other group of the model runs.
        further: Beside another one, which may share its weights.
    """

    first: int
    further: int


@dataclass(frozen=True, slots=True)
class OnDemandPlan:
    """What a stack may take whose models come and go.

    Attributes:
        budget_bytes: Memory that all groups may take together.
        store_bytes: The most that the stores may hold together.
        sizings: Of each model, with the most groups that it may have.
        groups: Memory of each model's groups, in the same order.
        machine: With the memory that is for groups, as it was at the start.
    """

    budget_bytes: int
    store_bytes: int
    sizings: tuple[Sizing, ...]
    groups: tuple[GroupBytes, ...]
    machine: MachineFacts


def comes_and_goes(models: Sequence[FoundModel]) -> bool:
    """Whether groups of any of these models are started or ended while the stack runs."""
    return any(model.entry.comes_and_goes for model in models)


def plan_on_demand(
    models: Sequence[ModelNeeds], at_start: Sequence[bool], machine: MachineFacts
) -> OnDemandPlan:
    """Choose what is open of all models, and what their groups may take.

    The stores get a quarter of the memory at most, since groups that come later find them full. Cores are
    shared by all models, as if each had one group.

    Args:
        at_start: Which models are loaded with the stack.

    Raises:
        TooLargeAlone: A model cannot be loaded at all.
        TooManyAtStart: Those that are loaded with the stack do not fit beside each other.
    """
    wanted = int(min(machine.store_bytes * STORE_OVERHEAD, machine.room_bytes * STORE_PART))
    stores = max(machine.least_store_bytes, wanted)
    rest = max(0, machine.free_bytes - int(stores / MEMORY_SHARE))
    for_groups = replace(machine, free_bytes=rest, store_bytes=0)
    sharing = sum(not model.given.cores for model in models)
    models = [_settled(model, machine.shared_cores, max(1, sharing)) for model in models]
    alone = [_alone(number, model, for_groups) for number, model in enumerate(models)]
    together = [number for number, loaded in enumerate(at_start) if loaded]
    try:
        kept = [at_least(models[number]) for number in together]
        beside = choose_sizings(kept, for_groups) if together else []
    except DoesNotFit:
        raise TooManyAtStart(for_groups) from None
    sizings = list(alone)
    for number, sizing in zip(together, beside, strict=True):
        most = max(sizing.groups, alone[number].groups)
        sizings[number] = _with_groups(models[number], for_groups, sizing, most)
    groups = [_group_bytes(model, for_groups, sizing) for model, sizing in zip(models, sizings, strict=True)]
    store_bytes = min(machine.store_bytes, int(stores / STORE_OVERHEAD))
    return OnDemandPlan(for_groups.room_bytes, store_bytes, tuple(sizings), tuple(groups), for_groups)


def at_least(model: ModelNeeds) -> ModelNeeds:
    """Return the needs of a model with the groups that are loaded with the stack, where they are fewer."""
    given = model.given
    return replace(model, given=replace(given, groups=given.min_groups or given.groups))


def null_plan(models: Sequence[FoundModel], machine: MachineFacts) -> OnDemandPlan:
    """Return the plan for groups that compute nothing."""
    groups = (GroupBytes(NULL_GROUP_BYTES, NULL_GROUP_BYTES),) * len(models)
    return OnDemandPlan(machine.room_bytes, machine.least_store_bytes, (), groups, machine)


def _settled(model: ModelNeeds, cores: int, models: int) -> ModelNeeds:
    given = model.given
    groups = given.groups or max(1, given.min_groups)
    threads = given.threads or max(1, cores // models // (groups * (given.tensor_parallel or 1)))
    kv = DEMAND_KV_TOKENS
    return replace(model, given=replace(given, groups=groups, threads=threads, most_kv_tokens=kv))


def _alone(number: int, model: ModelNeeds, machine: MachineFacts) -> Sizing:
    for groups in range(model.given.groups, 0, -1):
        if sizings := sizings_of([model], machine, [groups]):
            return sizings[0]
    raise TooLargeAlone(number)


def _with_groups(model: ModelNeeds, machine: MachineFacts, sizing: Sizing, groups: int) -> Sizing:
    """What was chosen for fewer groups, for so many: with the same KV cache each."""
    if groups == sizing.groups:
        return sizing
    fixed, unbounded = _unbounded(model, machine, sizing)
    found = sizings_of([fixed], unbounded, [groups])
    assert found is not None
    return replace(found[0], threads=sizing.threads, store_bytes=sizing.store_bytes)


def _unbounded(model: ModelNeeds, machine: MachineFacts, sizing: Sizing) -> tuple[ModelNeeds, MachineFacts]:
    """The model with the KV that was chosen, and the machine with memory for any number of groups."""
    fixed = replace(model, given=replace(model.given, kv_cache_tokens=sizing.kv_cache_tokens))
    return fixed, replace(machine, free_bytes=2**60)


def _group_bytes(model: ModelNeeds, machine: MachineFacts, sizing: Sizing) -> GroupBytes:
    """Memory of groups with the KV that was chosen."""
    fixed, unbounded = _unbounded(model, machine, sizing)
    needed = [sizings[0].needed_bytes for n in (1, 2) if (sizings := sizings_of([fixed], unbounded, [n]))]
    packing = own_weight_bytes(fixed, machine) + group_bytes(fixed) + reading_bytes(fixed, machine)
    # what is read while weights are packed is not counted for a model that has the machine for itself
    return GroupBytes(max(needed[0], min(packing, machine.room_bytes)), needed[1] - needed[0])
