"""Says that `--memory` is too small for any of a stack's models, what is needed, and what was given. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from cli.stack.fleet.on_demand import TooLargeAlone, plan_on_demand
from cli.stack.fleet.plan_text import NamedNeeds
from cli.stack.memory_needs import MachineFacts, ModelNeeds
from cli.stack.sizing import DoesNotFit, choose_sizing, least_bytes, missing_bytes
from cli.stack.sizing_text import count_words, size_words

_TENTH = 2**30 // 10  # `--memory` is recommended in tenths of a GiB


def refuse_memory(models: Sequence[NamedNeeds], machine: MachineFacts, *, on_demand: bool) -> str:
    """Return why none of the models can be served, and what to do; empty if not `--memory` is the cause.

    Args:
        on_demand: Models come and go, so that one of them is enough.
    """
    if machine.limit_bytes != machine.free_bytes or not models:  # or stores have their part already
        return ""
    if any(_fits(model.needs, machine, on_demand) for model in models):
        return ""
    tenths, smallest = min(
        ((_tenths(model.needs, machine, on_demand), model) for model in models), key=lambda pair: pair[0]
    )
    groups = smallest.needs.given.groups or 1
    (needed,) = least_bytes([smallest.needs], machine, [groups])
    whom, it = smallest.name, "it"
    if len(models) > 1:
        whom, it = f"any of the {len(models)} models", f"{smallest.name}, the smallest of them,"
    return (
        f"`--memory` is too small for {whom}: the stack gets {size_words(machine.limit_bytes)}, and "
        f"{it} needs `--memory {tenths / 10:g}` or more ({size_words(needed)} for "
        f"{count_words(groups, 'group')}, the rest for stores and other services)."
    )


def _fits(needs: ModelNeeds, machine: MachineFacts, on_demand: bool) -> bool:
    try:
        if on_demand:
            plan_on_demand([needs], [False], machine)
        else:
            choose_sizing(needs.size, needs.context, machine, needs.given)
    except (DoesNotFit, TooLargeAlone):
        return False
    return True


def _tenths(needs: ModelNeeds, machine: MachineFacts, on_demand: bool) -> int:
    """Return the least `--memory` for a model, in tenths of a GiB."""
    missing = missing_bytes([needs], machine, [needs.given.groups or 1])
    tenths = ceil((machine.free_bytes + missing) / _TENTH)
    while not _fits(needs, replace(machine, free_bytes=tenths * _TENTH), on_demand):
        tenths += 1
    return tenths
