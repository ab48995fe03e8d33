"""Plans the containers of a models file: checks and sizes it as `ryz up` does, and writes it for Compose."""

import os
from collections.abc import Sequence
from pathlib import Path

from cli.console import fail
from cli.stack.compose.container_facts import container_facts, limit_bytes
from cli.stack.compose.override import ComposeGroup, override_text
from cli.stack.compose.paths import is_mounted, leads_outside, path_in_container, pulled_name
from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import ServedModel
from cli.stack.group_plan import model_settings
from cli.stack.host.naming import group_name
from cli.stack.machine import settle_sizing
from cli.stack.options import UpOptions
from cli.stack.plan import aliases_of

COMPOSE = Path(__file__).resolve().parents[3] / "compose.yaml"
_NO_CORES = "in Compose a `cpuset` of the service reserves cores: leave `cores` out, or use `ryz up`"
_NO_ADAPTERS = (
    "in Compose nothing registers adapters at the start: leave `adapters` out, and load them while it runs "
    "(POST /v1/load_lora_adapter), from a path that the workers see"
)
_NO_REMOTE = (
    "in Compose a group in front of a server is a service of its own (docs/guests.md): leave this model out"
)
_NO_AGENT = "in Compose all groups run as long as the stack: leave `{}` out, or use `ryz up`"


def compose_text(file: Path, *, memory_gib: float, pull: bool) -> str:
    """Return a Compose file for a models file, to be read after `compose.yaml`.

    Args:
        file: The models file.
        memory_gib: Memory that the stack may take; 0: what is free.
        pull: Whether models that are not here are fetched.

    Raises:
        CommandError: All problems of the file, each with its line; or the models do not fit.
    """
    try:
        compose = COMPOSE.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{COMPOSE} cannot be read: {error.strerror}. Use a checkout, or `docker compose run ryz`.", 2)
    options = UpOptions(models=file, memory_gib=memory_gib)
    machine = container_facts(memory_gib)
    declared = declare(options, os.environ)
    _refuse_fields(declared)
    models = checked_models(options, declared, pull=pull, machine=machine)
    _refuse_links(declared, models)
    settled = settle_sizing(options, models, declared, machine)
    groups, top_priority = list[ComposeGroup](), max(model.entry.priority for model in models)
    for model, sizing in zip(settled.models, settled.sizings, strict=True):
        needs = settled.needs[model.name]
        limit = limit_bytes(needs, sizing, machine)
        # the room of a container is its limit, so a share of what is free there has no meaning
        sized = model.with_values(kv_cache_tokens=sizing.kv_cache_tokens)
        for _ in range(sizing.groups):
            groups.append(_group(sized, len(groups), limit, top_priority))
    names = [name for model in models for name in (model.entry.source, model.entry.draft_model)]
    pulls = dict.fromkeys(filter(None, map(pulled_name, names)))
    head = (
        f"Written by `ryz models plan {file} --compose`: after a change of that file write it anew "
        f"(docs/containers.md).\n{settled.text}"
    )
    return override_text(compose, groups, list(pulls), aliases_of(settled.models), head)


def _refuse_fields(declared: Declaration) -> None:
    for index, entry in declared.entries.items():
        if entry.cores:
            declared.add_entry_problem(index, "cores", _NO_CORES)
        if entry.remote:
            declared.add_entry_problem(index, "remote", _NO_REMOTE)
        if entry.adapters:
            declared.add_entry_problem(index, "adapters", _NO_ADAPTERS)
        if entry.comes_and_goes:
            fields = {"load": entry.load == "demand", "sleep_after_s": entry.sleep_after_s,
                      "min_groups": entry.min_groups}  # fmt: skip
            for field in (name for name, given in fields.items() if given):
                declared.add_entry_problem(index, field, _NO_AGENT.format(field))


def _refuse_links(declared: Declaration, models: Sequence[ServedModel]) -> None:
    for model in models:
        for field, path in (("source", model.path), ("draft_model", model.draft)):
            if path is not None and is_mounted(path) and leads_outside(path):
                text = f"{path} has links to files outside of it, which containers do not have: `cp -rL` it"
                declared.add_entry_problem(model.number, field, text)
    declared.refuse_problems()


def _group(model: ServedModel, number: int, limit: int, top_priority: int) -> ComposeGroup:
    assert model.path is not None
    settings = {"RYZ_GROUP": group_name("", number), **model_settings(model, {}, top_priority)}
    paths = [model.path, *filter(None, [model.draft])]
    for name, path in zip(("RYZ_MODEL", "RYZ_DRAFT_MODEL"), paths, strict=False):
        settings[name] = str(path_in_container(path))
    return ComposeGroup(settings, [str(path) for path in paths if is_mounted(path)], limit)
