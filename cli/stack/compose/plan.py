"""Plans the groups of Compose as `ryz up` plans its own, and writes what containers read."""

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cli.console import fail
from cli.stack.compose.container_facts import container_facts, limit_bytes
from cli.stack.default_model import DEFAULT
from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import ALIASES, declare
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel
from cli.stack.group_plan import memory_share, model_settings
from cli.stack.machine import Settled, settle_sizing
from cli.stack.memory_needs import MachineFacts
from cli.stack.options import UpOptions
from cli.stack.plan import aliases_of
from cli.stack.sizing_text import size_words
from shared.host.cores_and_memory import total_bytes, usable_cores

PLAN, GATEWAY, MORE = "plan.json", "gateway.env", "more.env"
# what workers see of the container that plans: the volume of models, and the demo model of the images
SEEN = (Path("/models"), Path("/srv/models"))
_KV_TOKENS = "RYZ_KV_CACHE_TOKENS"
_NO_CORES = "in Compose RYZ_CPUSET reserves cores for all workers: leave `cores` out, or use `ryz up`"
_NO_ADAPTERS = (
    "in Compose nothing registers adapters at the start: leave `adapters` out, and load them while it runs "
    "(POST /v1/load_lora_adapter), from a path below /models"
)
_NO_REMOTE = (
    "in Compose a group in front of a server is a service of its own (docs/guests.md): leave this model out"
)
_NO_AGENT = "in Compose all groups run as long as the stack: leave `{}` out, or use `ryz up`"
_NOT_SEEN = (
    "workers of Compose see models below /models only (RYZ_MODELS_VOLUME may name a directory), not {}"
)


def plan_containers(
    folder: Path,
    options: UpOptions,
    groups: int,
    limit: int,
    *,
    again: bool = False,
    seen: tuple[Path, ...] = SEEN,
) -> str:
    """Write the settings of each group into the folder, `g1.env` and so on; return what was chosen, in words.

    A plan is kept until what it was made of changes: made anew while its workers run, it would take their
    memory for taken.

    Args:
        groups: Containers of the workers.
        limit: Bytes that each of them may take; 0: there is no limit.
        again: Make it anew in any case.
        seen: Directories that workers have.

    Raises:
        CommandError: All problems of the models file, each with its line; or the models do not fit.
    """
    declared = _declared(options, groups)
    machine = container_facts(groups, limit)
    models = checked_models(options, declared, pull=True, machine=machine)
    _refuse_unseen(declared, models, seen)
    digest, kept = _digest(options, models), folder / PLAN
    if kept.exists() and not again and (old := json.loads(kept.read_text()))["made_of"] == digest:
        return f"{old['text']}\nThis plan was made before, and nothing that it was made of has changed."
    settled = settle_sizing(options, models, declared, machine)
    planned = sum(model.entry.groups for model in settled.models)
    if planned != groups:
        fail(
            f"The models file has {planned} groups, and there are {groups} worker containers: write "
            f"RYZ_GROUPS={planned} into `.env`, or change `groups` of a model.",
            2,
        )
    _refuse_large(settled, machine, limit)
    _write(folder, settled, groups)
    kept.write_text(json.dumps({"made_of": digest, "text": settled.text}))
    return settled.text


def _declared(options: UpOptions, groups: int) -> Declaration:
    given = options if options.models else replace(options, groups=groups)
    declared = declare(given, os.environ)
    if declared.is_open and options.engine != "null":
        declared = declare(replace(given, model=[Path(DEFAULT)]), os.environ)
    for index, entry in declared.entries.items():
        for field, text in (("cores", _NO_CORES), ("remote", _NO_REMOTE), ("adapters", _NO_ADAPTERS)):
            if getattr(entry, field):
                declared.add_entry_problem(index, field, text)
        fields = {
            "load": entry.load == "demand",
            "sleep_after_s": entry.sleep_after_s,
            "min_groups": entry.min_groups,
        }
        for field in (name for name, said in fields.items() if said):
            declared.add_entry_problem(index, field, _NO_AGENT.format(field))
    return declared


def _refuse_unseen(declared: Declaration, models: tuple[FoundModel, ...], seen: tuple[Path, ...]) -> None:
    for model in models:
        for field, path in (("source", model.path), ("draft_model", model.draft)):
            if path is not None and not any(path.is_relative_to(one) for one in seen):
                declared.add_entry_problem(model.number, field, _NOT_SEEN.format(path))
    declared.refuse_problems()


def _digest(options: UpOptions, models: tuple[FoundModel, ...]) -> str:
    made_of = {
        "environment": {name: value for name, value in os.environ.items() if name.startswith("RYZ_")},
        "file": options.models.read_text() if options.models else "",
        "models": [str(model.path) for model in models],
        "machine": [usable_cores(), total_bytes()],
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _refuse_large(settled: Settled, machine: MachineFacts, limit: int) -> None:
    """Refuse a group that its container's limit would kill."""
    for model, sizing in zip(settled.models, settled.sizings, strict=False):
        least = limit_bytes(settled.needs[model.name], sizing, machine)
        if 0 < limit < least:
            needed, given = size_words(least), size_words(limit)
            fail(f"A group of {model.name} needs {needed}, and RYZ_WORKER_MEMORY is {given}.", 1)


def _write(folder: Path, settled: Settled, groups: int) -> None:
    for old in folder.glob("*.env"):
        old.unlink()
    top_priority, share = (
        max(model.entry.priority for model in settled.models),
        memory_share(groups, os.environ),
    )
    of_models = [model_settings(model, {}, top_priority) | share for model in settled.models]
    of_groups = [
        own for model, own in zip(settled.models, of_models, strict=True) for _ in range(model.entry.groups)
    ]
    for number, own in enumerate(of_groups, 1):
        _write_env(folder / f"g{number}.env", own)
    if len(of_models) == 1:
        # a share of the memory that is free when such a group starts
        _write_env(folder / MORE, of_models[0] | {_KV_TOKENS: "0"})
    _write_env(folder / GATEWAY, {ALIASES: aliases_of(settled.models)})


def _write_env(path: Path, values: Mapping[str, str]) -> None:
    # an engine of others has a cache of its own, which is not planned; Compose's empty value is none
    unset = "" if _KV_TOKENS in values else f"unset {_KV_TOKENS}\n"
    path.write_text(unset + "".join(_lines(values)))


def _lines(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"export {name}={shlex.quote(value)}\n"
