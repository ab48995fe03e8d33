"""The commands for models of a running fleet. `fleet_models.py` beside it asks, `view.py` shows."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cli.command_options import with_options
from cli.stack.state import DEFAULT_DIR

if TYPE_CHECKING:
    from cli.models.running.fleet_models import FleetModels
    from shared.client import ModelWish
    from shared.client.calls.models_client import Action

T = TypeVar("T")
ModelName = Annotated[
    str, typer.Argument(metavar="NAME", help="A model that `ryz models status` lists, or an alias of it.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options that all of these commands have."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
    nats_url: Annotated[
        str, typer.Option(help="The broker.  [default: the stack that is up here, or RYZ_NATS_URL]")
    ] = ""
    state_dir: Annotated[Path, typer.Option(help="Where `ryz up` keeps its state.")] = DEFAULT_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """Whether and how long a command waits."""

    wait: Annotated[bool, typer.Option(help="Until the model is as it was asked for.")] = True
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, max=3600.0, help="Wait at most so many seconds.")
    ] = 600.0


@with_options
def status(common: FleetOptions) -> None:
    """List the models that hosts offer: state, groups, requests that wait, memory, and why.

    Examples:
        ryz models status
        ryz models status --json
    """
    from cli.console import out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.running.view import as_dict, listing  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    states = _run(common, lambda fleet: fleet.list_models())
    if common.as_json:
        print(json_text({"object": "list", "data": [as_dict(state) for state in states]}))
    else:
        out.print(listing(states))


@with_options
def load(name: ModelName, *, waits: WaitOptions, common: FleetOptions) -> None:
    """Load a model, also one that was unloaded or whose last load failed.

    Examples:
        ryz models load smollm2-135m
        ryz models load smollm2-135m --no-wait
    """
    _manage(_wish(name, "load"), waits, common)


@with_options
def wake(name: ModelName, *, waits: WaitOptions, common: FleetOptions) -> None:
    """Wake a model that is asleep, before a request does.

    Examples:
        ryz models wake smollm2-135m
    """
    _manage(_wish(name, "wake"), waits, common)


@with_options
def sleep(name: ModelName, *, waits: WaitOptions, common: FleetOptions) -> None:
    """End a model's groups as soon as they have nothing to do; the next request wakes it.

    Examples:
        ryz models sleep smollm2-135m --no-wait
    """
    _manage(_wish(name, "sleep"), waits, common)


@with_options
def unload(name: ModelName, *, waits: WaitOptions, common: FleetOptions) -> None:
    """End a model's groups, which finish what they run; requests are refused until it is loaded again.

    Examples:
        ryz models unload smollm2-135m
    """
    _manage(_wish(name, "unload"), waits, common)


@with_options
def scale(
    name: ModelName,
    groups: Annotated[int, typer.Argument(metavar="N", min=0, max=64, help="Groups that are to run.")],
    *,
    waits: WaitOptions,
    common: FleetOptions,
) -> None:
    """Set how many groups of a model run.

    Examples:
        ryz models scale smollm2-135m 2
    """
    from shared.client import ModelWish  # noqa: PLC0415

    _manage(ModelWish(name, "scale", groups), waits, common)


def _wish(name: str, action: "Action") -> "ModelWish":
    from shared.client import ModelWish  # noqa: PLC0415

    return ModelWish(name, action)


def _manage(wish: "ModelWish", waits: WaitOptions, common: FleetOptions) -> None:
    from cli.console import out  # noqa: PLC0415
    from cli.models.running.view import as_dict, outcome  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    timeout_s = waits.timeout_s if waits.wait else 0.0
    state = _run(common, lambda fleet: fleet.manage(wish, timeout_s, quiet=common.as_json))
    if common.as_json:
        print(json_text(as_dict(state)))
    else:
        out.print(outcome(wish, state), soft_wrap=True)


def _run(common: FleetOptions, work: Callable[["FleetModels"], Awaitable[T]]) -> T:
    import asyncio  # noqa: PLC0415

    from cli.models.running.fleet_models import fleet_models  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415

    async def run() -> T:
        async with fleet_models(common.nats_url, StateDir(common.state_dir)) as fleet:
            return await work(fleet)

    return asyncio.run(run())
