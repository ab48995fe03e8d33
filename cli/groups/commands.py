"""`ryz groups`: the list of worker groups, and draining of one that is updated or removed.

`groups/query.py` asks over the bus.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.command_groups import BrokerOptions, command_group
from cli.command_options import with_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.groups.query import GroupRow, Groups
    from cli.groups.silent_groups import SilentGroup
    from shared.messages import Draining

app = command_group(
    "List worker groups, and drain them. "
    "Exit codes: 1 it failed, 2 wrong usage, 3 there is no such group, 4 it drains already.",
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="A group, as `ryz groups list` shows them.")]


def _groups(common: BrokerOptions) -> "Groups":
    from cli.groups.query import Groups  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.stack.state import StateDir  # noqa: PLC0415

    return Groups(common.nats_url, StateDir(common.state_dir))


def _print(value: dict[str, Any]) -> None:
    from cli.visible import json_text  # noqa: PLC0415

    print(json_text(value))


@app.command("list")
@with_options
def list_groups(common: BrokerOptions) -> None:
    """List the groups: state, model, ranks, load, and how long each is up.

    Those whose leader does not answer are listed while routers know of them, with what was last heard.

    Examples:
        ryz groups list
        ryz groups list --json
    """
    import asyncio  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415

    found = asyncio.run(_groups(common).all())
    if common.as_json:
        _print({"object": "list", "data": [row.as_dict() for row in found]})
    else:
        out.print(_listing(found))


@app.command("drain")
@with_options
def drain(
    group: GroupName,
    *,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.0,
            max=3600.0,
            help="Seconds that requests may go on there before they move.  [default: the group's own]",
            show_default=False,
        ),
    ] = 0.0,
    wait: Annotated[bool, typer.Option(help="Until its process has ended.")] = True,
    until_ready: Annotated[
        bool, typer.Option("--until-ready", help="Wait until it was started again and is ready.")
    ] = False,
    ready_timeout_s: Annotated[
        float, typer.Option("--ready-timeout", min=1.0, max=3600.0, help="At most so many seconds for that.")
    ] = 120.0,
    common: BrokerOptions,
) -> None:
    """Have a group take no new work, let its requests end or move to others, and exit.

    Streams go on without a gap. What runs the group (`ryz up`, compose) starts it again.

    Examples:
        ryz groups drain g0
        ryz groups drain g0 --timeout 60 --until-ready
    """
    import asyncio  # noqa: PLC0415

    from cli.console import fail, out  # noqa: PLC0415

    if until_ready and not wait:
        fail("`--until-ready` waits, and `--no-wait` does not: choose one of them.", 2)
    work = _drain(
        _groups(common),
        group,
        timeout_s,
        wait=wait,
        ready_timeout_s=ready_timeout_s if until_ready else 0.0,
        console=None if common.as_json else out,
    )
    asyncio.run(work)


async def _drain(
    groups: "Groups", group: str, timeout_s: float, *, wait: bool, ready_timeout_s: float, console: Any
) -> None:
    """Drain a group and report it.

    Args:
        groups: The groups of the broker.
        timeout_s: How long its requests may go on there; 0 for its own limit.
        wait: Wait until its process has ended.
        ready_timeout_s: Wait so long until it is ready again; 0 does not wait.
        console: For people; None prints one JSON object at the end.
    """
    from cli.groups.query import count  # noqa: PLC0415

    def say(text: str) -> None:
        if console is not None:
            console.print(text, markup=False, soft_wrap=True)

    drain = await groups.drain(group, timeout_s)
    limit_s = drain.timeout_ms / 1000
    say(f"{group} drains: {count(drain.requests)} in hand, which move after {limit_s:.0f} s.")
    result: dict[str, Any] = {
        "object": "group.draining",
        "group": group,
        "instance_id": drain.instance_id,
        "requests": drain.requests,
        "timeout_s": limit_s,
    }
    if wait:
        took_s = await groups.wait_gone(drain, _progress(drain, console))
        say(f"{group} has ended after {took_s:.1f} s.")
        result |= {"object": "group.drained", "took_s": round(took_s, 3)}
    if ready_timeout_s:
        row = await groups.wait_ready(drain, ready_timeout_s)
        say(f"{group} is ready again, as {row.instance_id}.")
        result |= {"ready_instance_id": row.instance_id}
    if console is None:
        _print(result)


def _progress(drain: "Draining", console: Any) -> Any:
    """Return a callback that says how many requests are left, when that has changed."""
    from cli.groups.query import count  # noqa: PLC0415

    last = drain.requests

    def progress(left: int) -> None:
        nonlocal last
        if left != last and console is not None:
            console.print(f"{count(left)} left" if left else "none left: all ended or moved", markup=False)
        last = left

    return progress


def _listing(found: "list[GroupRow | SilentGroup]") -> "RenderableType":
    """Return a table with a row for each group."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from cli.groups.silent_groups import SilentGroup  # noqa: PLC0415
    from cli.status.view import duration, state_text, story_text  # noqa: PLC0415

    if not found:
        return Text("No groups.")
    table = Table(box=None, padding=(0, 2, 0, 0))
    right = {"ranks", "running", "waiting"}
    for name in ("group", "state", "model", "ranks", "running", "waiting", "up", "instance", "trouble"):
        table.add_column(name, justify="right" if name in right else "left", header_style="dim",
                         overflow="fold")  # fmt: skip
    for row in found:
        if isinstance(row, SilentGroup):
            nothing = ("-",) * 4  # of ranks, load and time
            table.add_row(Text(row.group), state_text(row.state), Text(row.model), *nothing,
                          Text(row.instance_id), story_text(row))  # fmt: skip
            continue
        numbers = (str(row.ranks), str(row.running), str(row.waiting))
        table.add_row(
            Text(row.group),
            state_text(row.state),
            Text(row.model),
            *numbers,
            duration(row.up_s),
            Text(row.instance_id),
            Text(", ".join(row.troubles) or "-", style="red" if row.rivals else ""),
        )
    return table
