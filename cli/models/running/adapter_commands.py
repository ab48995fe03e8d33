"""`ryz models load-adapter` and `unload-adapter`: the adapters of a running fleet."""

from pathlib import Path
from typing import Annotated

import typer

from cli.command_groups import BrokerOptions
from cli.command_options import with_options
from cli.console import fail
from cli.models.running.commands import on_fleet

BaseName = Annotated[
    str, typer.Argument(metavar="BASE", help="A model that the fleet serves, or an alias of it.")
]
AdapterName = Annotated[
    str, typer.Argument(metavar="NAME", help="1 to 64 letters, digits, `_`, `.` and `-`.")
]
WAIT_S = 600.0


@with_options
def load_adapter(
    base: BaseName,
    name: AdapterName,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A PEFT directory or a GGUF file, as the hosts see it.")
    ],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of other content under that name.")
    ] = False,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose it is.")] = "default",
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, max=3600.0, help="Wait at most so long for a ready group.")
    ] = WAIT_S,
    common: BrokerOptions,
) -> None:
    """Make an adapter (LoRA) known to the fleet, where it is asked for as the model BASE:NAME.

    A group of the base reads and checks the files; each group loads them with the first request for the
    adapter. A base that is asleep is woken.

    Examples:
        ryz models load-adapter smollm2-135m french ./adapters/french
        ryz models load-adapter smollm2-135m french ./adapters/french-2 --replace
    """
    from cli.console import out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.running.view import adapter_dict, adapter_words  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    path = _as_hosts_see_it(source)
    loaded = on_fleet(
        common,
        lambda fleet: fleet.load_adapter(base, name, path, tenant=tenant, replace=replace, wait_s=timeout_s),
    )
    if common.as_json:
        print(json_text(adapter_dict(loaded)))
    else:
        out.print(f"{loaded.model} is known: {adapter_words(loaded)}.", markup=False, soft_wrap=True)


@with_options
def unload_adapter(base: BaseName, name: AdapterName, *, common: BrokerOptions) -> None:
    """Take an adapter away: requests for it are refused, and those that run with it end first.

    Examples:
        ryz models unload-adapter smollm2-135m french
    """
    from cli.console import out  # noqa: PLC0415
    from cli.models.running.view import adapter_dict  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    gone = on_fleet(common, lambda fleet: fleet.unload_adapter(base, name))
    if common.as_json:
        print(json_text(adapter_dict(gone)))
    else:
        out.print(f"{gone.model} is known no more.", markup=False, soft_wrap=True)


def _as_hosts_see_it(source: str) -> str:
    """The path for other processes: one that begins here is made absolute."""
    path = Path(source).expanduser()
    if path.exists():
        return str(path.resolve())
    if not path.is_absolute():
        fail(f"There is no {source} here. A path on another host has to begin with a slash.", 2)
    return str(path)
