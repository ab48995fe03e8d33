"""The commands for models of a running fleet. `fleet_models.py` beside it asks, `view.py` shows."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cli.command_groups import BrokerOptions
from cli.command_options import with_options

if TYPE_CHECKING:
    from cli.models.running.fleet_models import FleetModels
    from shared.client.calls.models_client import Action

T = TypeVar("T")
ModelName = Annotated[
    str, typer.Argument(metavar="NAME", help="A model that `ryz models status` lists, or an alias of it.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """Whether and how long a command waits."""

    wait: Annotated[bool, typer.Option(help="Until the model is as it was asked for.")] = True
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, max=3600.0, help="Wait at most so many seconds.")
    ] = 600.0


@with_options
def status(common: BrokerOptions) -> None:
    """List the models that hosts offer: state, groups, requests that wait, memory, and why; and all adapters.

    Examples:
        ryz models status
        ryz models status --json
    """
    from cli.console import err, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.running.view import adapter_dict, adapter_listing, as_dict, listing  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    states, adapters = on_fleet(common, lambda fleet: fleet.list_all())
    if common.as_json:
        data = [as_dict(state) for state in states]
        shown = None if adapters is None else [adapter_dict(one) for one in adapters]
        print(json_text({"object": "list", "data": data, "adapters": shown}))
        return
    out.print(listing(states))
    if adapters:
        out.print()
        out.print(adapter_listing(adapters))
    elif adapters is None:
        err.print("Adapters are not known: the KV state service does not answer.", style="dim")


def _command_for(action: "Action", description: str) -> Callable[..., None]:
    def command(name: ModelName, *, waits: WaitOptions, common: BrokerOptions) -> None:
        _manage(name, action, 0, waits, common)

    command.__name__ = action
    command.__doc__ = description
    return with_options(command)


load = _command_for(
    "load",
    """Load a model, also one that was unloaded or whose last load failed.

    Examples:
        ryz models load smollm2-135m
        ryz models load smollm2-135m --no-wait
    """,
)
wake = _command_for(
    "wake",
    """Wake a model that is asleep, before a request does.

    Examples:
        ryz models wake smollm2-135m
    """,
)
sleep = _command_for(
    "sleep",
    """End a model's groups as soon as they have nothing to do; the next request wakes it.

    Examples:
        ryz models sleep smollm2-135m --no-wait
    """,
)
unload = _command_for(
    "unload",
    """End a model's groups, which finish what they run; requests are refused until it is loaded again.

    Examples:
        ryz models unload smollm2-135m
    """,
)


@with_options
def scale(
    name: ModelName,
    groups: Annotated[int, typer.Argument(metavar="N", min=0, max=64, help="Groups that are to run.")],
    *,
    waits: WaitOptions,
    common: BrokerOptions,
) -> None:
    """Set how many groups of a model run.

    Examples:
        ryz models scale smollm2-135m 2
    """
    _manage(name, "scale", groups, waits, common)


def _manage(name: str, action: "Action", groups: int, waits: WaitOptions, common: BrokerOptions) -> None:
    from cli.console import out  # noqa: PLC0415
    from cli.models.running.view import as_dict, outcome  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415
    from shared.client import ModelWish  # noqa: PLC0415

    wish = ModelWish(name, action, groups)
    timeout_s = waits.timeout_s if waits.wait else 0.0
    state = on_fleet(common, lambda fleet: fleet.manage(wish, timeout_s, quiet=common.as_json))
    if common.as_json:
        print(json_text(as_dict(state)))
    else:
        out.print(outcome(wish, state), soft_wrap=True)


def on_fleet(common: BrokerOptions, work: Callable[["FleetModels"], Awaitable[T]]) -> T:
    """Run something on the fleet of the broker that the options name."""
    import asyncio  # noqa: PLC0415

    from cli.models.running.fleet_models import fleet_models  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415

    async def run() -> T:
        async with fleet_models(common.nats_url, StateDir(common.state_dir)) as fleet:
            return await work(fleet)

    return asyncio.run(run())
