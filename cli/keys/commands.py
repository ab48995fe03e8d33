"""`ryz keys`: make, list, change, rotate and revoke API keys and bus users."""

from typing import Annotated, Literal

import typer

from cli.command_groups import BrokerOptions, command_group
from cli.command_options import with_options
from cli.keys.bus_user_options import BusUserOptions
from cli.keys.key_options import KeyOptions
from cli.tenants.values import LimitOptions

app = command_group(
    "Make, list, change, rotate and revoke API keys and bus users (docs/tenants.md). "
    "Exit codes: 1 it failed, 2 wrong usage, 3 there is no such key or tenant, 4 there is such a bus user.",
)
KeyName = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="As `ryz keys list` shows it, such as sk-ryz-4f7a0m2k9d1c, or a bus user's name."
    ),
]

EndStreams = Annotated[
    bool, typer.Option("--end-streams", help="End answers under way as well, with an error that says so.")
]


@app.command("create")
@with_options
def create(
    *,
    tenant: Annotated[
        str, typer.Option(help="Whose key it is.  [default: default]", show_default=False)
    ] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="It manages models, tenants and keys, for all tenants.")
    ] = False,
    bus_user: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Make a bus user of that name, for a service that speaks to the broker.",
            show_default=False,
        ),
    ] = "",
    options: KeyOptions,
    limits: LimitOptions,
    of_user: BusUserOptions,
    common: BrokerOptions,
) -> None:
    """Make a key, and print it, which is kept nowhere: now or never.

    With the first key that is no admin's the API refuses requests without a key. Of a bus user its variables
    are printed, with the password.

    Examples:
        ryz keys create --tenant acme --label ci --expires 90d
        ryz keys create --tenant acme --model smollm2-135m --api chat --requests-per-minute 60
        ryz keys create --admin
        ryz keys create --tenant acme --bus-user billing --max-rps 20
    """
    from cli.keys.work import create_key  # noqa: PLC0415 (keeps `ryz --help` quick)

    create_key(tenant, options, limits, of_user, common, admin=admin, bus_user=bus_user)


@app.command("list")
@with_options
def list_keys(
    *,
    tenant: Annotated[str, typer.Option(help="Those of one tenant.", show_default=False)] = "",
    common: BrokerOptions,
) -> None:
    """List the keys and bus users: the beginning of each, what it may be used for, when it ends."""
    from cli.keys.work import show_keys  # noqa: PLC0415

    show_keys(tenant, common)


@app.command("show")
@with_options
def show(key: KeyName, *, common: BrokerOptions) -> None:
    """Show a key."""
    from cli.keys.work import show_key  # noqa: PLC0415

    show_key(key, common)


@app.command("set")
@with_options
def set_key(
    key: KeyName, *, options: KeyOptions, limits: LimitOptions, of_user: BusUserOptions, common: BrokerOptions
) -> None:
    """Change what a key may be used for; what is not given stays as it is.

    Examples:
        ryz keys set sk-ryz-4f7a0m2k9d1c --expires 30d --running 4
        ryz keys set billing --max-rps 50
    """
    from cli.keys.work import change_key  # noqa: PLC0415

    change_key(key, options, limits, of_user, common)


@app.command("rotate")
@with_options
def rotate(
    key: KeyName,
    *,
    overlap: Annotated[
        str,
        typer.Option(
            help="For how long both are valid, such as 24h; 0s: the old one ends at once.  [default: 1h]",
            show_default=False,
        ),
    ] = "",
    common: BrokerOptions,
) -> None:
    """Make another key with the same scopes and limits; the old one ends after the overlap.

    A bus user gets another password, and its old one ends at once.

    Examples:
        ryz keys rotate sk-ryz-4f7a0m2k9d1c --overlap 24h
    """
    from cli.keys.work import rotate_key  # noqa: PLC0415

    rotate_key(key, overlap, common)


@app.command("revoke")
@with_options
def revoke(key: KeyName, *, end_streams: EndStreams = False, common: BrokerOptions) -> None:
    """End a key at once, everywhere."""
    from cli.keys.work import revoke_key  # noqa: PLC0415

    revoke_key(key, common, end_streams=end_streams)


@app.command("require")
@with_options
def require(
    state: Annotated[Literal["on", "off"], typer.Argument(help="`on`: requests without a key are refused.")],
    *,
    common: BrokerOptions,
) -> None:
    """Close the API to requests without a key, or open it again."""
    from cli.keys.work import require_keys  # noqa: PLC0415

    require_keys(common, required=state == "on")


@app.command("broker-config")
@with_options
def broker_config(*, common: BrokerOptions) -> None:
    """Print the broker's configuration with the bus users, for a broker that `ryz up` does not run.

    It takes the place of deploy/nats.conf. No password is in it: those of our services come from the broker's
    environment, the others are hashes. Users that an earlier release kept in the state directory become
    records.

    Examples:
        ryz keys broker-config > nats.conf
    """
    from cli.keys.users_work import print_broker_config  # noqa: PLC0415

    print_broker_config(common)
