"""`ryz tenants shares`: what each tenant gets of busy groups now."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.command_groups import BrokerOptions
from cli.command_options import with_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.status.query import StatusReport

BETWEEN_S = 1.0  # two answers, whose difference is shown


@with_options
def shares(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C, once a second.")] = False,
    common: BrokerOptions,
) -> None:
    """Show what each tenant gets of busy groups now: tokens a second, requests, credit.

    Without keys, an address takes the place of a tenant.
    """
    from cli.console import fail, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.stack.state import StateDir  # noqa: PLC0415
    from cli.status.query import ask_status  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415
    from shared.accounts.live_shares import LiveShares  # noqa: PLC0415

    if common.as_json and watch:
        fail("`--json` prints one object and `--watch` goes on for ever: choose one of them.", 2)
    stack, known = StateDir(common.state_dir), LiveShares()

    def ask() -> "tuple[StatusReport, list[dict[str, Any]]]":
        report = ask_status(common.nats_url, stack)
        return report, known.groups(report.services, time.monotonic())

    if watch:
        from rich.live import Live  # noqa: PLC0415

        from cli.live_pause import pause_with  # noqa: PLC0415

        with Live(console=out, screen=True, auto_refresh=False) as live:
            pause_with(live)
            while True:
                report, groups = ask()
                live.update(share_tables(groups, report.problem), refresh=True)
                time.sleep(0.7)
    report, groups = ask()
    if not report.services:
        fail(report.problem)
    time.sleep(BETWEEN_S)
    report, groups = ask()
    if not report.services:
        fail(report.problem)
    if common.as_json:
        print(json_text({"object": "list", "groups": groups}))
    else:
        out.print(share_tables(groups))


def share_tables(groups: list[dict[str, Any]], problem: str = "") -> "RenderableType":
    """Return a table with the parties of each group, or why there is none."""
    from rich.text import Text  # noqa: PLC0415

    from cli.tenants.view import table  # noqa: PLC0415

    if problem or not groups:
        return Text(problem or "No worker group answers: `ryz groups list` shows their states.")
    numbers = ("share", "due", "tokens/s", "running", "waiting", "credit")
    made = table("group", "tenant", *numbers, right=numbers)
    for group in groups:
        name = str(group["group"])
        if not group["parties"]:
            made.add_row(Text(name), Text("nothing runs or waits", style="dim"))
        for one in group["parties"]:
            cells = (
                name,
                f"{one['party']} (batches)" if one["background"] else str(one["party"]),
                _percent(one["share"]),
                _percent(one["due"]),
                "-" if one["tokens_per_s"] is None else f"{one['tokens_per_s']:,.0f}",
                str(one["running"]),
                str(one["waiting"]),
                f"{one['credit']:,.0f}",
            )
            made.add_row(*map(Text, cells))
            name = ""
        if group["others"]:
            made.add_row("", Text(f"and {group['others']} more", style="dim"))
    return made


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"
