"""What groups of commands share: how they show their help, and the options of those that ask the gateway."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.nearest_stack import nearest_stack
from cli.stack.state import DEFAULT_DIR

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
BrokerUrl = Annotated[
    str, typer.Option(help="The broker.  [default: the stack that is up here, or RYZ_NATS_URL]")
]
_STATE_HELP = f"Where `ryz up` keeps its state.  [default: {DEFAULT_DIR}, or of the one stack that is up]"
StateDirectory = Annotated[Path, typer.Option(help=_STATE_HELP, show_default=False, callback=nearest_stack)]
GatewayUrl = Annotated[
    str, typer.Option(help="The gateway.  [default: the stack that is up here, or RYZ_URL]")
]
ApiKey = Annotated[str, typer.Option(envvar="RYZ_API_KEY", help="A key of the gateway's.")]
# None: no directory was named, and `--url` or RYZ_URL may say where the gateway is
GatewayState = Annotated[Path | None, typer.Option(help=_STATE_HELP, callback=nearest_stack)]


def command_group(help_text: str) -> typer.Typer:
    """Make a group of commands, which without a command shows its help as plain text."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The options of a command that asks the gateway."""

    as_json: JsonOption = False
    url: GatewayUrl = ""
    api_key: ApiKey = ""
    state_dir: GatewayState = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The options of a command that asks services over the broker."""

    as_json: JsonOption = False
    nats_url: BrokerUrl = ""
    state_dir: StateDirectory = DEFAULT_DIR
