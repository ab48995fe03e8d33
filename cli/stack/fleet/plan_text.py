"""Says what the models of a stack get on this machine, what they gave up, and why they do not fit. Pure.

A model that is alone has the words of `sizing_text.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cli.stack.fleet.on_demand import OnDemandPlan, at_least
from cli.stack.memory_needs import (
    MachineFacts,
    ModelNeeds,
    chosen_precision,
    has_kernels,
    loading_bytes,
    share_weights,
)
from cli.stack.sizing import (
    GROUPS,
    Sizing,
    groups_for_cores,
    least_bytes,
    least_cache_bytes,
    missing_bytes,
    sizings_of,
)
from cli.stack.sizing_text import (
    count_words,
    describe_groups_of,
    describe_losses,
    describe_short_cache,
    describe_sizing,
    free_words,
    more_words,
    processes_words,
    refusal,
    room_words,
    size_words,
)


@dataclass(frozen=True, slots=True)
class NamedNeeds:
    """A model by its name, and what its sizing depends on."""

    name: str
    needs: ModelNeeds


def describe_plan(models: Sequence[NamedNeeds], sizings: Sequence[Sizing], machine: MachineFacts) -> str:
    """Say in lines what was chosen and why, and what was given up and brings it back."""
    if len(models) == 1:
        needs, sizing = models[0].needs, sizings[0]
        size, context, given = needs.size, needs.context, needs.given
        lines = [
            describe_sizing(sizing, size, machine),
            describe_losses(sizing, size, context, machine, given),
            describe_short_cache(given.kv_cache_tokens, context),
        ]
        return "\n".join(filter(None, lines))
    stores = f" and {size_words(sizings[0].store_bytes)} for the stores" if sizings[0].store_bytes else ""
    needed = size_words(sum(sizing.needed_bytes for sizing in sizings))
    lines = [
        f"{len(models)} models on {count_words(machine.cores, 'core')}, "
        f"{size_words(machine.free_bytes)} free: at most {needed} of memory for the groups{stores}."
    ]
    for model, sizing in zip(models, sizings, strict=True):
        size = model.needs.size
        groups = describe_groups_of(sizing, size, machine)
        lines.append(f"{model.name}: {size.parameters / 1e6:.0f} M parameters: {groups}.")
    lines += [f"{name}: {text}" for name, text in losses(models, sizings, machine)]
    for model in models:
        if short := describe_short_cache(model.needs.given.kv_cache_tokens, model.needs.context):
            lines.append(f"{model.name}: {short}")
    return "\n".join(lines)


def describe_on_demand(
    models: Sequence[NamedNeeds], at_start: Sequence[bool], plan: OnDemandPlan, machine: MachineFacts
) -> str:
    """Say in lines what the models take that come and go, and what they may take together."""
    lines = [
        f"{count_words(len(models), 'model')} on {count_words(machine.cores, 'core')}, "
        f"{size_words(machine.free_bytes)} free: {size_words(plan.budget_bytes)} for the groups that are "
        f"loaded, {size_words(plan.store_bytes)} for the stores."
    ]
    rows = zip(models, at_start, plan.sizings, plan.groups, strict=True)
    for model, loads, sizing, needs in rows:
        groups = describe_groups_of(sizing, model.needs.size, machine)
        when = "loaded now" if loads else "loaded on demand"
        if least := model.needs.given.min_groups:
            when = f"{count_words(least, 'group')} loaded now and kept, others on demand"
            when = when if least < sizing.groups else "loaded now and kept"
        lines.append(
            f"{model.name}: {model.needs.size.parameters / 1e6:.0f} M parameters: {when}: {groups}; "
            f"{size_words(needs.first)} with its KV full."
        )
    first = sum(needs.first for needs in plan.groups)
    if first > plan.budget_bytes:
        lines.append(
            f"All at once would take {size_words(first)}: idle ones make room for those that are asked for."
        )
    return "\n".join(lines)


def losses(
    models: Sequence[NamedNeeds], sizings: Sequence[Sizing], machine: MachineFacts
) -> Iterator[tuple[str, str]]:
    """Yield what each of several models gave up, with the reason and the remedy, by its name."""
    needs = [model.needs for model in models]
    for_cores = groups_for_cores(needs, machine.shared_cores)
    counts = [sizing.groups for sizing in sizings]
    for number, (model, sizing) in enumerate(zip(models, sizings, strict=True)):
        if sizing.groups < GROUPS and not model.needs.given.groups:
            if for_cores[number] < GROUPS:
                ranks = sum(sizing.groups * sizing.tensor_parallel for sizing in sizings)
                cores = count_words(machine.shared_cores, "core")
                why = f"{cores} have {count_words(ranks, 'rank')} to run already"
                remedy = "`groups = 2` in a models file gives it a second one all the same"
            else:
                why = "two do not fit"
                more = missing_bytes(needs, machine, [*counts[:number], GROUPS, *counts[number + 1 :]])
                remedy = f"room for the second: {more_words(more, machine)}, or a smaller `precision`"
            yield model.name, f"one group only, since {why}: its streams end if it fails; {remedy}."
        if (
            sizing.kv_cache_tokens < model.needs.given.most_kv_tokens
            and not model.needs.given.kv_cache_tokens
        ):
            bound = "no request may have more"
            if sizing.kv_cache_tokens >= model.needs.context:
                bound = "others wait for room"
            yield (
                model.name,
                f"KV for {sizing.kv_cache_tokens:,} tokens in place of "
                f"{model.needs.given.most_kv_tokens:,}: all requests of a group share them, and {bound}.",
            )


def refuse_start(models: Sequence[NamedNeeds], machine: MachineFacts) -> str:
    """Say why the groups that are loaded with a stack do not fit, and what to do."""
    kept = [NamedNeeds(model.name, at_least(model.needs)) for model in models]
    least = [model.needs.given.min_groups for model in models]
    fewer = " Or fewer `min_groups`." if max(least) > 1 else ""
    without = " and without `min_groups`" if any(least) else ""
    waits = f'Or one of them with `load = "demand"`{without}, which waits until there is room.'
    return f"{refuse_fleet(kept, machine)}{fewer} {waits}"


def refuse_fleet(models: Sequence[NamedNeeds], machine: MachineFacts) -> str:
    """Say why models do not fit beside each other, and what to do."""
    if len(models) == 1:
        needs = models[0].needs
        return refusal(needs.size, needs.context, machine, needs.given)
    all_needs = [model.needs for model in models]
    counts = [needs.given.groups or 1 for needs in all_needs]
    needed, shared = least_bytes(all_needs, machine, counts), share_weights(all_needs, machine, counts)
    loading, packing = loading_bytes(all_needs, machine, counts), ""
    if loading > sum(needed):
        packing = f"While the weights are packed, the groups need {size_words(loading)}. "
    parts = list[str]()
    for n, (model, count) in enumerate(zip(models, counts, strict=True)):
        size = model.needs.size
        weights = size_words(size.weight_bytes(chosen_precision(size, machine, model.needs.given)))
        kv = size_words(least_cache_bytes(model.needs, machine))
        weights = f"that share {weights}" if shared[n] else f"with {weights}"
        parts.append(
            f"{model.name} {size_words(needed[n])} ({count_words(count, 'group')} {weights} of "
            f"weights, {kv} of KV and {processes_words(model.needs)})"
        )
    stores = f" and the stores {size_words(machine.least_store_bytes)}" if machine.least_store_bytes else ""
    return (
        f"The models do not fit beside each other into {room_words(machine)}. Together they would need "
        f"{size_words(sum(needed))}: {', '.join(parts)}. {packing}"
        f"{free_words(machine)}, of which the other services need "
        f"{size_words(machine.reserve_bytes)}{stores}. "
        f"What helps: {' or '.join(_remedies(models, machine, counts))}."
    )


def _remedies(models: Sequence[NamedNeeds], machine: MachineFacts, counts: Sequence[int]) -> Iterator[str]:
    """Name what makes the models fit, each by itself."""
    needs = [model.needs for model in models]
    smaller = [
        replace(one, given=replace(one.given, precision="int8"))
        if chosen_precision(one.size, machine, one.given) in {"fp32", "bf16"}
        and has_kernels(one.size, machine)
        else one
        for one in needs
    ]
    if smaller != needs and sizings_of(smaller, machine, counts):
        yield '`precision = "int8"`'
    open_kv = [replace(one, given=replace(one.given, kv_cache_tokens=0)) for one in needs]
    if open_kv != needs and sizings_of(open_kv, machine, counts):
        yield "fewer `kv_cache_tokens`"
    if max(counts) > 1 and sizings_of(needs, machine, [1] * len(counts)):
        field = "min_groups" if any(one.given.min_groups for one in needs) else "groups"
        yield f"`{field} = 1` for each"
    for number, model in enumerate(models):
        others = [*needs[:number], *needs[number + 1 :]]
        if sizings_of(others, machine, [*counts[:number], *counts[number + 1 :]]):
            yield f"leaving out {model.name}"
            break
    yield more_words(missing_bytes(needs, machine, counts), machine)
