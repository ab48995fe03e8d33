"""`ryz top`: the fleet live in the terminal, from what `ryz status` asks all services."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_groups import BrokerUrl, StateDirectory
from cli.stack.state import DEFAULT_DIR

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.top.fleet_rates import FleetRates

_QUIT = frozenset(b"qQ")


class QuitKey:
    """Reads keys while the command waits, without an Enter behind them.

    Args:
        reads: Whether stdin is a terminal.
        resume: Call it when the command goes on after Ctrl-Z, since a shell resets the terminal.
    """

    def __init__(self, reads: bool, resume: Callable[[], object] = lambda: None) -> None:
        self._reads = reads
        self.resume = resume

    def pressed_within(self, seconds: float) -> bool:
        """Waits so long, or until q is pressed, which makes it True."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if not self._reads:
                time.sleep(left)
                return False
            if select([sys.stdin], [], [], left)[0]:
                keys = os.read(sys.stdin.fileno(), 64)  # not buffered, so that `select` sees what is left
                if not keys or _QUIT.intersection(keys):  # nothing: the terminal is gone
                    return True
        return False


@contextmanager
def quit_key() -> Iterator[QuitKey]:
    """Gives keys one by one in the block, where stdin is a terminal; restores the terminal afterwards."""
    if not sys.stdin.isatty():
        yield QuitKey(False)
        return
    import termios  # noqa: PLC0415 (not on Windows)
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield QuitKey(True, lambda: tty.setcbreak(sys.stdin))
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def top(
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Look for one interval, print, and end, as without a terminal.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.5, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each look.")] = False,
    nats_url: BrokerUrl = "",
    state_dir: StateDirectory = DEFAULT_DIR,
) -> None:
    """Show groups, ranks, queues, rates and losses live, until q or Ctrl-C.

    Rates and quantiles are those of the last interval; req/s are answers that began in it. Of a rank they say
    what its time went into; the rank that waits least in collectives is the one for which the others wait.
    Into a pipe or a file it prints once, with `--json` until Ctrl-C. Exit code 1 when nothing answers at the
    start.
    """
    from cli.console import fail, out  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from cli.status.query import ask_status, find_broker  # noqa: PLC0415
    from cli.top.fleet_rates import FleetComparison  # noqa: PLC0415
    from shared.address import redact  # noqa: PLC0415

    stack_dir, watch = StateDir(state_dir), FleetComparison()

    def query() -> "FleetRates":
        report = ask_status(nats_url, stack_dir)
        return watch.take(report, time.monotonic(), time.time())

    broker = redact(find_broker(nats_url, stack_dir))
    try:
        first = query()
        if first.problem:
            fail(first.problem)
        if once or as_json or not out.is_terminal:
            _print(query, broker, interval, once=once or not as_json, as_json=as_json)
        else:
            _show(first, query, broker, interval)
    except KeyboardInterrupt:
        return


def _print(
    query: "Callable[[], FleetRates]", broker: str, interval: float, *, once: bool, as_json: bool
) -> None:
    """Prints each reading; rates need a reading before."""
    import json  # noqa: PLC0415
    from dataclasses import asdict  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415
    from cli.top.view import render  # noqa: PLC0415

    while True:
        time.sleep(interval)
        fleet = query()
        if as_json:
            print(json.dumps(asdict(fleet)), flush=True)
        else:
            out.print(render(fleet, out.width, broker, interval))
        if once:
            return


def _show(fleet: "FleetRates", query: "Callable[[], FleetRates]", broker: str, interval: float) -> None:
    """Redraws the view until q, also while nothing answers; begins with `fleet`, which has no rates yet."""
    from rich.live import Live  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415
    from cli.live_pause import pause_with  # noqa: PLC0415
    from cli.top.view import render  # noqa: PLC0415

    with quit_key() as keys, Live(console=out, screen=True, auto_refresh=False) as live:
        pause_with(live, keys.resume)
        began = time.monotonic()
        while True:
            live.update(render(fleet, out.width, broker, interval), refresh=True)
            if keys.pressed_within(max(0.05, began + interval - time.monotonic())):
                return
            began = time.monotonic()
            fleet = query()
