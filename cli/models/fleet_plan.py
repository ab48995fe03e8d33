"""`ryz models plan`: what `ryz up --models FILE` would run on this machine, without starting anything."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.command_groups import JsonOption
from cli.command_options import with_options
from cli.console import fail

if TYPE_CHECKING:
    from rich.table import Table

    from cli.stack.fleet.entry import FoundModel
    from cli.stack.memory_needs import MachineFacts, ModelNeeds
    from cli.stack.sizing import Sizing

_SUMMED = ("groups", "ranks", "weights_bytes", "kv_bytes", "process_bytes", "bytes")


@with_options
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A models file (docs/models.md).")],
    *,
    memory_gib: Annotated[
        float, typer.Option("--memory", min=0, help="As for `ryz up`, in GiB.", show_default=False)
    ] = 0.0,
    as_json: JsonOption = False,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch models that are not here yet.")] = False,
) -> None:
    """Show what `ryz up --models FILE` would run here: groups, ranks, precision, memory.

    It checks the file and the models as `ryz up` does, and counts kernels that `ryz up` would compile first.
    Exit codes: 1 the models do not fit beside each other, 2 the file has mistakes.

    Examples:
        ryz models plan models.toml
        ryz models plan models.toml --json
    """
    from cli.console import out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.stack.fleet.check import checked_models  # noqa: PLC0415
    from cli.stack.fleet.declare import declare  # noqa: PLC0415
    from cli.stack.machine import on_gpus, settle_sizing  # noqa: PLC0415
    from cli.stack.machine_facts import machine_facts  # noqa: PLC0415
    from cli.stack.options import UpOptions  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    if not file.exists():
        fail(
            f"There is no models file {file}. This command takes a TOML file of models (docs/models.md); "
            "`ryz models show NAME` shows how a single model would run here.",
            2,
        )
    if on_gpus():
        fail("On GPUs the workers see themselves what fits there: there is no plan to show.", 2)
    options = UpOptions(models=file, memory_gib=memory_gib)
    declared = declare(options, os.environ)
    machine = machine_facts(options, will_compile=True)
    models = checked_models(options, declared, pull=pull, machine=machine)
    settled = settle_sizing(options, models, declared, machine)
    rows = [
        _row(name, needs, sizing)
        for (name, needs), sizing in zip(settled.needs.items(), settled.sizings, strict=True)
    ]
    own = {row["name"]: row for row in rows}
    rows = [own.get(model.name) or _remote_row(model) for model in settled.models]
    for row, model in zip(rows, settled.models, strict=True):
        row["aliases"] = list(model.entry.aliases)
        row["min_groups"] = model.entry.min_groups
        row["adapters"] = [{"name": one.name, "source": one.source} for one in model.entry.adapters]
    total = {field: sum(row[field] for row in rows) for field in _SUMMED}
    plan = settled.on_demand
    sizings = settled.sizings
    stores = plan.store_bytes if plan is not None else sizings[0].store_bytes if sizings else 0
    if as_json:
        found = {"cores": machine.cores, "free_bytes": machine.free_bytes, "room_bytes": machine.room_bytes}
        said = settled.text.splitlines()
        print(
            json_text(
                {"models": rows, "total": total | {"store_bytes": stores}, "machine": found, "text": said}
            )
        )
        return
    out.print(_table(rows, total, machine, stores))
    for row in rows:
        if row["adapters"]:
            names = ", ".join(one["name"] for one in row["adapters"])
            out.print(f"Adapters of {row['name']}: {names}.", markup=False, soft_wrap=True)
    out.print(settled.text, soft_wrap=True)


def _row(name: str, needs: "ModelNeeds", sizing: "Sizing") -> dict[str, Any]:
    from cli.stack.memory_needs import group_bytes  # noqa: PLC0415

    processes = sizing.groups * group_bytes(needs)
    return {
        "name": name,
        "parameters": needs.size.parameters,
        "groups": sizing.groups,
        "tensor_parallel": sizing.tensor_parallel,
        "ranks": sizing.groups * sizing.tensor_parallel,
        "threads": sizing.threads,
        "precision": sizing.precision,
        "kv_cache_tokens": sizing.kv_cache_tokens,
        "weights_bytes": sizing.weight_bytes,
        "weights_shared": sizing.shares_weights,
        "kv_bytes": sizing.needed_bytes - sizing.weight_bytes - processes,
        "process_bytes": processes,
        "bytes": sizing.needed_bytes,
    }


def _remote_row(model: "FoundModel") -> dict[str, Any]:
    """The row of a model that a server computes: it needs no ranks, and no memory for weights and KV here."""
    nothing = (
        "parameters", "tensor_parallel", "ranks", "threads", "kv_cache_tokens", "weights_bytes", "kv_bytes",
        "process_bytes", "bytes",
    )  # fmt: skip
    named = {"name": model.name, "groups": model.entry.groups, "precision": "remote", "weights_shared": False}
    return dict.fromkeys(nothing, 0) | named | {"remote": model.entry.remote}


def _table(
    rows: Sequence[dict[str, Any]], total: dict[str, int], machine: "MachineFacts", stores: int
) -> "Table":
    from rich.table import Table  # noqa: PLC0415

    from cli.stack.sizing_text import size_words  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in ("MODEL", "ALIASES", "PRECISION"):
        table.add_column(heading, overflow="fold")
    for heading in ("GROUPS", "RANKS", "THREADS", "KV TOKENS", "WEIGHTS", "KV", "PROCESSES", "MEMORY"):
        table.add_column(heading, justify="right")
    for row in rows:
        sizes = (size_words(row[field]) for field in ("weights_bytes", "kv_bytes", "process_bytes", "bytes"))
        least = row["min_groups"]
        groups = f"{least} to {row['groups']}" if 0 < least < row["groups"] else str(row["groups"])
        counts = (groups, str(row["ranks"]), str(row["threads"]), f"{row['kv_cache_tokens']:,}")
        table.add_row(row["name"], " ".join(row["aliases"]), row["precision"], *counts, *sizes)
    sums = (size_words(total[field]) for field in ("weights_bytes", "kv_bytes", "process_bytes", "bytes"))
    table.add_row(
        "all groups", "", "", str(total["groups"]), str(total["ranks"]), "", "", *sums, style="bold"
    )
    for name, size in (
        ("stores, at most", stores),
        ("other services", machine.reserve_bytes),
        (f"free, {machine.cores} cores", machine.free_bytes),
    ):
        table.add_row(name, *[""] * 9, size_words(size))
    return table
