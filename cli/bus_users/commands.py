"""`ryz bus-users`: a user of the broker for each service outside, with a tenant and limits of its own.

`store.py` keeps the users, and makes a running broker load changes.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_groups import JsonOption, StateDirectory, command_group
from cli.command_options import with_options
from cli.stack.state import DEFAULT_DIR

if TYPE_CHECKING:
    from shared.bus.users import BusUser, BusUsers

NONE_SUCH, KNOWN_ALREADY = 3, 4
app = command_group(
    "Give services outside users of their own on the broker. "
    "Exit codes: 1 it failed, 2 wrong usage, 3 there is no such user, 4 there is one already.",
)
UserName = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.")]


@app.command("add")
@with_options
def add(
    name: UserName,
    *,
    tenant: Annotated[
        str, typer.Option(help="Whose requests and sessions it has.  [default: NAME]", show_default=False)
    ] = "",
    max_rps: Annotated[
        float | None,
        typer.Option(min=0, max=1e6, help="Requests a second; 0: no limit.  [default: the router's]"),
    ] = None,
    max_priority: Annotated[
        int | None, typer.Option(min=-10, max=10, help="Of its requests.  [default: the router's]")
    ] = None,
    state_dir: StateDirectory = DEFAULT_DIR,
) -> None:
    """Make a user, and print its password, which is not kept: now or never.

    A broker that `ryz up` runs there knows it at once, and after every start.

    Examples:
        ryz bus-users add billing --tenant acme --max-rps 20
    """
    from cli.bus_users.hashing import hash_password, new_password  # noqa: PLC0415 (quick `--help`)
    from cli.bus_users.store import change  # noqa: PLC0415
    from cli.console import fail, out  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from shared.bus.accounts import ACCOUNTS, with_user  # noqa: PLC0415
    from shared.bus.users import BusUser, BusUsers  # noqa: PLC0415

    _check(name, "NAME")
    _check(tenant or name, "--tenant")
    if name in ACCOUNTS:
        fail(f"{name} is a user that every broker of ours has; choose another name.", KNOWN_ALREADY)
    password = new_password()
    user = BusUser(name, tenant or name, hash_password(password), max_rps, max_priority)

    def added(users: BusUsers) -> BusUsers:
        if users.find(name) is not None:
            fail(f"There is a user {name} already; `ryz bus-users remove {name}` removes it.", KNOWN_ALREADY)
        return BusUsers([*users.users, user])

    state = change(StateDir(state_dir), added)
    url = with_user(state.nats_url if state else "nats://HOST:4222", name, password)
    lines = [f"RYZ_NATS_URL={url}"]
    if user.tenant != name:
        lines.append(f"RYZ_NATS_TENANT={user.tenant}")
    out.print("\n".join(lines), markup=False, soft_wrap=True)
    if state is None:
        _report_no_broker()


@app.command("list")
def list_users(
    *,
    as_json: JsonOption = False,
    state_dir: StateDirectory = DEFAULT_DIR,
) -> None:
    """List the users: tenant and limits, no passwords."""
    import json  # noqa: PLC0415

    from cli.bus_users.store import bus_users  # noqa: PLC0415
    from cli.console import out  # noqa: PLC0415

    users = bus_users(state_dir).users
    if as_json:
        print(json.dumps({"object": "list", "data": [_shown(user) for user in users]}, indent=1))
        return
    if not users:
        out.print("No users besides `outside`.", markup=False)
    for user in users:
        limits = [
            f"{what} {limit:g}"
            for what, limit in (("max-rps", user.max_rps), ("max-priority", user.max_priority))
            if limit is not None
        ]
        out.print(f"{user.name}  tenant {user.tenant}  {', '.join(limits)}".rstrip(), markup=False)


@app.command("remove")
def remove(name: UserName, *, state_dir: StateDirectory = DEFAULT_DIR) -> None:
    """Remove a user; a broker that runs there closes its connections."""
    from cli.bus_users.store import change  # noqa: PLC0415
    from cli.console import fail, out  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from shared.bus.users import BusUsers  # noqa: PLC0415

    def removed(users: "BusUsers") -> "BusUsers":
        if users.find(name) is None:
            fail(f"There is no user {name}; `ryz bus-users list` shows them.", NONE_SUCH)
        return BusUsers([user for user in users.users if user.name != name])

    state = change(StateDir(state_dir), removed)
    out.print(f"The user {name} is removed.", markup=False)
    if state is None:
        _report_no_broker()


@app.command("render")
@with_options
def render(*, state_dir: StateDirectory = DEFAULT_DIR) -> None:
    """Print the broker's configuration with these users, for a broker that `ryz up` does not run.

    It takes the place of deploy/nats.conf. No password is in it: those of our services come from the broker's
    environment, the others are hashes.

    Examples:
        ryz bus-users render > nats.conf
    """
    from cli.bus_users.store import bus_users  # noqa: PLC0415
    from shared.bus import nats_conf  # noqa: PLC0415

    print(nats_conf.render(bus_users(state_dir).hashes()), end="")


def _shown(user: "BusUser") -> dict[str, object]:
    return {
        "name": user.name,
        "tenant": user.tenant,
        "max_rps": user.max_rps,
        "max_priority": user.max_priority,
    }


def _check(name: str, option: str) -> None:
    import re  # noqa: PLC0415

    from cli.console import fail  # noqa: PLC0415
    from shared.messages.base import ID_PATTERN  # noqa: PLC0415

    if not re.fullmatch(ID_PATTERN, name):
        fail(f"{option}: {name[:64]!r} is no name: 1 to 64 letters, digits, - and _.", 2)


def _report_no_broker() -> None:
    from cli.console import err  # noqa: PLC0415

    err.print(
        "No broker of `ryz up` runs there: the next one will know. For another broker see "
        "`ryz bus-users render`.",
        markup=False,
        soft_wrap=True,
    )
