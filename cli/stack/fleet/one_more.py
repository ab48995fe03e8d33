"""Finds, checks and sizes one more model for a stack whose models come and go."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cli.console import fail
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import ModelEntry, ServedModel
from cli.stack.fleet.find import find_models
from cli.stack.fleet.models_file import describe_problem
from cli.stack.fleet.on_demand import GroupBytes, OnDemandPlan, TooLargeAlone, null_plan, plan_on_demand
from cli.stack.fleet.plan_text import refuse_fleet
from cli.stack.machine import examine, is_null, settled_null, with_sizing
from cli.stack.memory_needs import ModelNeeds
from cli.stack.options import UpOptions


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A model that was found and fits, with what its groups take; `needs` is None for the null engine."""

    model: ServedModel
    groups: GroupBytes
    needs: ModelNeeds | None


def read_entry(text: str) -> ModelEntry:
    """Return an entry that is given in JSON; it is loaded on demand.

    Raises:
        CommandError: It is wrong; with all of its mistakes.
    """
    try:
        given: Any = json.loads(text)
    except ValueError:
        fail("The model is no JSON.")
    if not isinstance(given, dict):
        fail("The model must be an object with the fields of a models file (docs/models.md).")
    try:
        entry = ModelEntry.model_validate({"load": "demand", **given})
    except ValidationError as error:
        fail("; ".join(describe_problem(one) for one in error.errors()) + ".")
    if not entry.name:
        fail("`name` is missing: a model that is added has to be named.")
    if entry.aliases:
        fail("`aliases` are read at the start only: write them into the models file.")
    if entry.cores:
        fail("`cores` are reserved at the start only: write them into the models file.")
    if entry.load == "start":
        fail(
            '`load = "start"` is for models of the start: leave it out, and load the model when it is there.'
        )
    return entry


def find_one_more(options: UpOptions, entry: ModelEntry, plan: OnDemandPlan, served: int) -> AddedModel:
    """Fetch a model if it is not here, and choose what its entry leaves open. It takes as long as that.

    Args:
        plan: Of the stack.
        served: How many models there are already, which share the cores with it.

    Raises:
        CommandError: It cannot be had, cannot be served as declared, or does not fit.
    """
    declared = Declaration(entries={0: entry}, labels={0: entry.name})
    models = find_models(declared, options.engine, pull=True)
    declared.refuse_problems()
    if is_null(options, models):
        return AddedModel(settled_null(models[0]), null_plan(models, plan.machine).groups[0], None)
    share = max(1, plan.machine.shared_cores // (served + 1))
    models = tuple(model.with_values(threads=entry.threads or share) for model in models)
    named = examine(options, models, plan.machine, declared)
    declared.refuse_problems()
    try:
        own = plan_on_demand([one.needs for one in named], [False], plan.machine)
    except TooLargeAlone:
        fail(refuse_fleet(named, plan.machine))
    return AddedModel(with_sizing(models[0], own.sizings[0]), own.groups[0], named[0].needs)
