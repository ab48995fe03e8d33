"""Finds, checks and sizes one more model for a stack whose models come and go."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cli.console import CommandError, fail
from cli.models.resolve import meant_by, refuse_unserved
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.fleet.find import find_models
from cli.stack.fleet.models_file import describe_problem
from cli.stack.fleet.on_demand import (
    GroupBytes,
    OnDemandPlan,
    TooLargeAlone,
    TooManyAtStart,
    null_plan,
    plan_on_demand,
)
from cli.stack.fleet.plan_text import refuse_fleet, refuse_start
from cli.stack.fleet.without_ranks import settled_null
from cli.stack.machine import examine, is_null, with_sizing
from cli.stack.memory_needs import ModelNeeds
from cli.stack.options import UpOptions
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A model that was found and fits, with what its groups take; `needs` is None for the null engine."""

    model: FoundModel
    groups: GroupBytes
    needs: ModelNeeds | None


def read_entry(text: str) -> ModelEntry:
    """Return an entry that is given in JSON; it is loaded on demand.

    Raises:
        InvalidRequest: It is wrong, with all of its mistakes; `param` is the first field.
    """
    try:
        given: Any = json.loads(text)
    except ValueError:
        raise InvalidRequest("the model is no JSON") from None
    if not isinstance(given, dict):
        raise InvalidRequest("the model must be an object with the fields of a models file (docs/models.md)")
    try:
        entry = ModelEntry.model_validate({"load": "demand", **given})
    except ValidationError as error:
        problems = error.errors()
        field = next((str(one["loc"][0]) for one in problems if one["loc"]), None)
        raise InvalidRequest("; ".join(map(describe_problem, problems)), param=field) from None
    if not entry.name:
        raise InvalidRequest("`name` is missing: a model that is added has to be named", param="name")
    if entry.aliases:
        raise InvalidRequest(
            "`aliases` are read at the start only: write them into the models file", param="aliases"
        )
    if entry.adapters:
        raise InvalidRequest(
            "`adapters` are read at the start only: load them when the model is there", param="adapters"
        )
    if entry.cores:
        raise InvalidRequest(
            "`cores` are reserved at the start only: write them into the models file", param="cores"
        )
    if entry.load == "start":
        raise InvalidRequest(
            '`load = "start"` is for models of the start: leave it out, and load the model when it is there',
            param="load",
        )
    _check_model("source", entry.source)
    if entry.draft_model:
        _check_model("draft_model", entry.draft_model)
    return entry


def _check_model(field: str, given: str) -> None:
    """Refuse what is neither a name nor the path of a model; whether that model is whole is seen later."""
    try:
        refuse_unserved(given)
        meant_by(given)
    except CommandError as error:
        raise InvalidRequest(f"`{field}`: {str(error).removesuffix('.')}", param=field) from None


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
        own = plan_on_demand([one.needs for one in named], [entry.min_groups > 0], plan.machine)
    except TooLargeAlone:
        fail(refuse_fleet(named, plan.machine))
    except TooManyAtStart as error:
        fail(refuse_start(named, error.machine))
    return AddedModel(with_sizing(models[0], own.sizings[0]), own.groups[0], named[0].needs)
