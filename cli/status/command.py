"""`ryz status`: asks every service over the bus how it is, and shows the answers.

It needs nothing but the broker's address. Tables are laid out in `status/view.py`.
"""

import time
from typing import Annotated

import typer

from cli.command_groups import BrokerUrl, JsonOption, StateDirectory
from cli.stack.state import DEFAULT_DIR


def status(
    as_json: JsonOption = False,
    nats_url: BrokerUrl = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C, once a second.")] = False,
    state_dir: StateDirectory = DEFAULT_DIR,
) -> None:
    """Show services, groups, ranks, queues and sessions. Exit code 1 when nothing answers."""
    import json  # noqa: PLC0415

    from cli.console import fail, out  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from cli.status.query import ask_status  # noqa: PLC0415
    from cli.status.view import render  # noqa: PLC0415

    if as_json and watch:
        fail("`--json` prints one object and `--watch` goes on for ever: choose one of them.", 2)
    stack_dir = StateDir(state_dir)
    if watch:
        from rich.live import Live  # noqa: PLC0415

        from cli.live_pause import pause_with  # noqa: PLC0415

        with Live(console=out, screen=True, auto_refresh=False) as live:
            pause_with(live)
            while True:
                live.update(render(ask_status(nats_url, stack_dir)), refresh=True)
                time.sleep(0.7)
    report = ask_status(nats_url, stack_dir)
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    elif report.services:
        out.print(render(report))
    if not report.services:
        fail(report.problem)
