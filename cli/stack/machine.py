"""Chooses what is left open of a stack's models: examines models and machine, and has `sizing.py` choose."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cli.console import fail
from cli.stack.fleet.core_sets import CoreSets, assign_cores, describe_cores, num_reserved, with_reserved
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.fleet.memory_option import refuse_memory
from cli.stack.fleet.on_demand import (
    OnDemandPlan,
    TooLargeAlone,
    TooManyAtStart,
    comes_and_goes,
    null_plan,
    plan_on_demand,
)
from cli.stack.fleet.plan_text import (
    NamedNeeds,
    describe_on_demand,
    describe_plan,
    refuse_fleet,
    refuse_start,
)
from cli.stack.fleet.remote_models import check_beside, describe_remote, own_models, settled_remote
from cli.stack.fleet.without_ranks import settled_null, settled_vllm
from cli.stack.machine_facts import machine_facts, measure_model
from cli.stack.memory_needs import (
    MAX_RUNNING,
    TOKEN_BUDGET,
    GivenSizing,
    MachineFacts,
    ModelNeeds,
    draft_bytes,
)
from cli.stack.options import UpOptions
from cli.stack.sizing import DoesNotFit, Sizing, choose_sizing, choose_sizings
from cli.stack.sizing_text import describe_short_cache, refusal, refuse_tiny_cache
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.precision import require_served
from shared.host.cores_and_memory import available_bytes, total_bytes, usable_cores
from shared.host.numa_nodes import usable_nodes

DOES_NOT_FIT = 1  # exit code for models of a file


@dataclass(frozen=True, slots=True)
class Settled:
    """What a stack runs.

    Attributes:
        models: With what they left open.
        text: A line on each model that says what was chosen and why, one that says what was given up, and one
            for a KV cache that holds less than the context; empty without a model.
        redis_memory_share: What the stores may take of all memory.
        needs: What was examined, by the model's name; empty for the null engine and on GPUs.
        sizings: What was chosen, in the same order.
        cores: Where groups and other processes run.
        on_demand: What groups may take; None: all of them run as long as the stack.
    """

    models: tuple[FoundModel, ...]
    text: str
    redis_memory_share: float
    needs: Mapping[str, ModelNeeds] = field(default_factory=dict)
    sizings: tuple[Sizing, ...] = ()
    on_demand: OnDemandPlan | None = None
    cores: CoreSets = field(default_factory=CoreSets)


def settle_sizing(
    options: UpOptions,
    models: Sequence[FoundModel],
    declared: Declaration,
    machine: MachineFacts | None = None,
) -> Settled:
    """Fill in groups, ranks, threads, precision and KV room; on GPUs the workers settle the last two.

    Args:
        declared: Gets what is wrong with single models; all of it is raised together.
        machine: Where it is to run; None: this machine.

    Raises:
        CommandError: The models do not fit this machine, with the figures; or one cannot be had as declared.
    """
    machine = machine or machine_facts(options)
    models = with_reserved(models, machine.cores, declared)
    check_beside(models, declared)
    settled = _settle_open(options, own_models(models), declared, machine)
    everything = settled_remote(models, settled.models)
    cores = assign_cores(everything, usable_nodes())
    said = settled.text, *describe_remote(models), *describe_cores(everything, cores)
    return replace(settled, models=everything, cores=cores, text="\n".join(filter(None, said)))


def _settle_open(
    options: UpOptions, models: Sequence[FoundModel], declared: Declaration, machine: MachineFacts
) -> Settled:
    if options.engine == "vllm":
        declared.refuse_problems()
        return Settled(settled_vllm(models), "", options.redis_memory_share)
    if is_null(options, models):
        declared.refuse_problems()
        plan = null_plan(models, machine) if comes_and_goes(models) else None
        return Settled(tuple(map(settled_null, models)), "", options.redis_memory_share, on_demand=plan)
    machine = replace(machine, reserved_cores=num_reserved(models))
    named = examine(options, models, machine, declared)
    declared.refuse_problems()
    if on_gpus():
        return _settle_on_gpus(options, models)
    if comes_and_goes(models):
        return _settle_on_demand(options, models, named, machine, declared)
    try:
        sizings = choose_sizings([one.needs for one in named], machine)
    except DoesNotFit:
        fail(refuse_fleet(named, machine), DOES_NOT_FIT)
    return Settled(
        models=tuple(with_sizing(model, sizing) for model, sizing in zip(models, sizings, strict=True)),
        text=describe_plan(named, sizings, machine),
        redis_memory_share=_store_share(options, models, sizings[0].store_bytes),
        needs={one.name: one.needs for one in named},
        sizings=tuple(sizings),
    )


def is_null(options: UpOptions, models: Sequence[FoundModel]) -> bool:
    """Whether no ranks compute."""
    return options.engine != "torch" or all(model.path is None for model in models)


def on_gpus() -> bool:
    """Whether ranks compute on GPUs."""
    return os.environ.get("RYZ_DEVICE") == "cuda"


def examine(
    options: UpOptions, models: Sequence[FoundModel], machine: MachineFacts, declared: Declaration
) -> list[NamedNeeds]:
    """Return what each model needs; on GPUs the workers see that.

    Notes which cannot be had as declared, or are too large even if they had the machine for themselves.
    """
    found, too_large = list[NamedNeeds](), list[tuple[FoundModel, str]]()
    for model in models:
        assert model.path is not None
        entry, context = model.entry, read_config(model.path).context_length
        if problem := refuse_tiny_cache(entry.kv_cache_tokens or 0, context):
            declared.add_entry_problem(model.number, "kv_cache_tokens", problem)
            continue
        if entry.precision not in {"auto", "fp32"} and options.kernels == "plain":
            text = f"precision {entry.precision} needs the compiled kernels: leave out one of the two"
            declared.add_entry_problem(model.number, "precision", text)
        if on_gpus():
            continue
        needs = _needs_of(model, machine)
        found.append(NamedNeeds(model.name, needs))
        try:
            if entry.precision != "auto":
                require_served(entry.precision, needs.size.stored, str(model.path))
            choose_sizing(needs.size, context, machine, needs.given)
        except ModelError as error:
            declared.add_entry_problem(model.number, "precision", str(error))
        except DoesNotFit:
            too_large.append((model, refusal(needs.size, context, machine, needs.given)))
    exit_code = DOES_NOT_FIT if declared.file else 2
    problem = refuse_memory(found, machine, on_demand=comes_and_goes(models)) if too_large else ""
    if problem and not declared.has_problems:
        fail(problem, exit_code)
    for model, text in too_large:
        declared.add_entry_problem(model.number, "source", text, exit_code)
    return found


def _settle_on_demand(
    options: UpOptions,
    models: Sequence[FoundModel],
    named: Sequence[NamedNeeds],
    machine: MachineFacts,
    declared: Declaration,
) -> Settled:
    at_start = [model.entry.loads_at_start for model in models]
    try:
        plan = plan_on_demand([one.needs for one in named], at_start, machine)
    except TooLargeAlone as error:
        if problem := refuse_memory(named, machine, on_demand=True):
            fail(problem, DOES_NOT_FIT)
        one = named[error.number]
        fail(f"{one.name}: {refuse_fleet([one], machine)}", DOES_NOT_FIT)
    except TooManyAtStart as error:
        loaded = [one for one, loads in zip(named, at_start, strict=True) if loads]
        text = refuse_start(loaded, error.machine)
        if kept := [model for model in models if model.entry.min_groups]:
            declared.add_entry_problem(kept[-1].number, "min_groups", text, DOES_NOT_FIT)
            declared.refuse_problems()
        fail(text, DOES_NOT_FIT)
    return Settled(
        models=tuple(with_sizing(model, sizing) for model, sizing in zip(models, plan.sizings, strict=True)),
        text=describe_on_demand(named, at_start, plan, machine),
        redis_memory_share=_store_share(options, models, plan.store_bytes),
        needs={one.name: one.needs for one in named},
        sizings=plan.sizings,
        on_demand=plan,
    )


def _settle_on_gpus(options: UpOptions, models: Sequence[FoundModel]) -> Settled:
    """One group, since two would take the same GPUs; each worker sees itself what fits there."""
    if comes_and_goes(models):
        fail(
            "On GPUs models are loaded with the stack: leave out `load`, `sleep_after_s` and `min_groups`.", 2
        )
    if len(models) > 1:
        fail(
            "Several models on GPUs: the groups of each would take GPU 0 and up. Start a stack for each "
            "model, with a `CUDA_VISIBLE_DEVICES` of its own, on one broker (`--nats-url`, `--redis-url`).",
            2,
        )
    (model,) = models
    assert model.path is not None
    entry = model.entry
    groups, ranks = entry.groups or 1, entry.tensor_parallel or 1
    threads = entry.threads or max(1, usable_cores() // (groups * ranks))
    tokens = entry.kv_cache_tokens or 0
    settled = model.with_values(groups=groups, tensor_parallel=ranks, threads=threads, kv_cache_tokens=tokens)
    room = f"KV for {tokens:,} tokens" if tokens else "KV in a share of what is free there"
    text = f"On GPUs: groups {groups}, ranks of each {ranks}, a GPU for each rank; {room}."
    if groups == 1 and not entry.groups:
        text += "\nOne group only: running streams end if it fails. With GPUs for another one: `--groups 2`."
    short = describe_short_cache(tokens, read_config(model.path).context_length)
    return Settled((settled,), "\n".join(filter(None, [text, short])), options.redis_memory_share)


def _needs_of(model: FoundModel, machine: MachineFacts) -> ModelNeeds:
    """Examine a model's files, and take what its entry says."""
    assert model.path is not None
    size = measure_model(model.path, kernels=machine.kernels)
    given = replace(given_sizing(model.entry), draft_bytes=_draft_bytes(model, machine))
    return ModelNeeds(size, read_config(model.path).context_length, given)


def _draft_bytes(model: FoundModel, machine: MachineFacts) -> int:
    """What the draft model takes in each group, if there is one that is used."""
    if model.draft is None or (os.environ.get("RYZ_SPECULATION") or "draft") != "draft":
        return 0
    size = measure_model(model.draft, kernels=machine.kernels)
    return draft_bytes(size, os.environ.get("RYZ_DRAFT_PRECISION", ""), kernels=machine.kernels)


def given_sizing(entry: ModelEntry | None = None) -> GivenSizing:
    """Return what an entry and the settings of the workers say."""
    steps = GivenSizing(
        token_budget=_setting("RYZ_TOKEN_BUDGET", TOKEN_BUDGET),
        max_running=_setting("RYZ_MAX_RUNNING", MAX_RUNNING),
    )
    if entry is None:
        return steps
    return replace(
        steps,
        groups=entry.groups,
        min_groups=entry.min_groups,
        tensor_parallel=entry.tensor_parallel,
        threads=entry.threads,
        cores=entry.cores,
        precision=entry.precision,
        kv_cache_tokens=entry.kv_cache_tokens or 0,
    )


def _setting(name: str, default: int) -> int:
    """A setting of the workers; a value that they will refuse counts as the default here."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() and 0 < int(value) < 2**20 else default


def _store_share(options: UpOptions, models: Sequence[FoundModel], stores: int) -> float:
    """What the stores may take of all memory."""
    if any(model.entry.kv_cache_tokens == 0 for model in models):
        # these workers take a share of the free memory, which is known only then
        stores = min(stores, available_bytes() // 4)
    return stores / total_bytes() if stores else options.redis_memory_share


def with_sizing(model: FoundModel, sizing: Sizing) -> FoundModel:
    """Return a model with what was chosen for it."""
    return model.with_values(
        groups=sizing.groups,
        tensor_parallel=sizing.tensor_parallel,
        threads=sizing.threads,
        precision=sizing.precision,
        # 0 was given: the worker takes a share of the free memory
        kv_cache_tokens=0 if model.entry.kv_cache_tokens == 0 else sizing.kv_cache_tokens,
    )
