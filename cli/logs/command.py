"""`ryz logs`: shows the lines of all services by time; `logs/files.py` reads them."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.command_groups import StateDirectory
from cli.command_options import with_options
from cli.console import fail
from cli.stack.state import DEFAULT_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

    from cli.logs.lines import LogLine

POLL_S = 0.2  # between two checks for new lines
_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red", "debug": "dim"}

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which lines are shown, and how."""

    request: Annotated[
        str, typer.Option(help="Lines of this request only; also the id of a trace, session or response.")
    ] = ""
    service: Annotated[
        list[str] | None, typer.Option(help="Lines of this service only, such as worker-g0; repeatable.")
    ] = None
    group: Annotated[
        str,
        typer.Option("--group", "-g", help="Lines of this group's leader and ranks, and those that name it."),
    ] = ""
    rank: Annotated[
        int | None, typer.Option(min=0, help="Lines of this rank only; of each group without --group.")
    ] = None
    level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Lines of this level or above.")
    ] = "debug"
    since: Annotated[
        str, typer.Option(help="Lines from then on: 90s, 10m, 2h, 1d, or a time such as 2026-03-01T12:00.")
    ] = ""
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False
    before: Annotated[bool, typer.Option("--before", help="Lines of the stack before this one as well.")] = (
        False
    )
    spans: Annotated[
        bool,
        typer.Option(
            "--spans", help="Spans of RYZ_TRACE_EXPORT=console, too; with --request they are shown."
        ),
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as they were written.")] = False
    source: Annotated[
        str,
        typer.Option("--from", help="A file with lines, or - for a pipe, such as of `docker compose logs`."),
    ] = ""
    state_dir: StateDirectory = DEFAULT_DIR


@with_options
def logs(options: LogOptions) -> None:
    """Show the logs of all services of the stack, merged by time. Exit code 1 when there is no line to show.

    Examples:
        ryz logs --level warning --since 10m
        ryz logs --group g1 --rank 0
        ryz logs --request chatcmpl-4f1c --follow
        docker compose logs --no-color | ryz logs --from - --level warning
    """
    import time  # noqa: PLC0415 (keeps `ryz --help` quick)
    from itertools import chain  # noqa: PLC0415

    from cli.console import fail  # noqa: PLC0415
    from cli.logs.files import LogFiles  # noqa: PLC0415
    from cli.stack.state import StateDir, state_dir_words  # noqa: PLC0415

    from_s = parse_since(options.since, time.time())
    if options.source:
        _show_piped(options, from_s)
        return
    state_dir = StateDir(options.state_dir)
    with LogFiles(state_dir.logs, older=options.before) as files:
        if not files.services:
            if files.has_older:
                fail(
                    f"The last start ended before it started a service: {state_dir.logs} has no logs of it. "
                    f"`ryz logs --before{state_dir_words(state_dir.path)}` shows those of the stack before."
                )
            fail(f"There are no logs in {state_dir.logs}: no stack was started there; see `--state-dir`.")
        for name in set(options.service or ()) - set(files.services):
            if not options.follow:
                fail(f"There is no service {name!r}; there are {', '.join(files.services)}.", exit_code=2)
        lines = files.past()
        if options.follow:
            lines = chain(lines, files.follow(lambda: time.sleep(POLL_S)))
        _show(lines, options, from_s)


def _show_piped(options: LogOptions, from_s: float) -> None:
    """Shows lines of a pipe: sorted by time, or as they come with `--follow`."""
    from cli.console import fail  # noqa: PLC0415
    from cli.logs.files import piped_lines  # noqa: PLC0415

    try:
        lines = piped_lines(options.source)
        _show(lines if options.follow else sorted(lines, key=lambda line: line.time_s), options, from_s)
    except OSError as error:
        fail(f"`--from {options.source}`: {error.strerror}", exit_code=2)


def _show(lines: "Iterable[LogLine]", options: LogOptions, from_s: float) -> None:
    from cli.console import fail, out  # noqa: PLC0415

    shown = 0
    for line in lines:
        if not _wanted(line, options, from_s):
            continue
        shown += 1
        if options.as_json:
            print(line.raw, flush=options.follow)
        else:
            out.print(_shown(line), soft_wrap=True)
    if not shown and not options.follow:
        fail(_nothing_found(options))


def _nothing_found(options: LogOptions) -> str:
    request = options.request
    if not request and options.rank is None:
        return "There is no such line."
    if not request:
        whose = f"rank {options.rank}" + (f" of group {options.group!r}" if options.group else "")
        return (
            f"There is no line of {whose}. A rank logs what goes wrong and little else; `ryz top` shows what "
            "each one does, `ryz groups list` the groups."
        )
    return (
        f"There is no line of {request!r}. A request is logged when it moves, is resumed or fails. With "
        "RYZ_REQUEST_LOG=true a gateway logs each one that it serves, by HTTP, gRPC, WebSocket or `complete` "
        "on NATS; those that services publish on NATS themselves go past the gateway. "
        f"`ryz explain {request}` shows the course of the newest requests, wherever they come from."
    )


def _wanted(line: "LogLine", options: LogOptions, from_s: float) -> bool:
    return bool(
        line.time_s >= from_s
        and (options.spans or options.request or not line.is_span)
        and (not options.service or line.service in options.service)
        and (not options.group or line.is_of_group(options.group))
        and (options.rank is None or line.is_of_rank(options.rank))
        and line.reaches(options.level)
        and (not options.request or line.has_id(options.request))
    )


def _shown(line: "LogLine") -> "Text":
    """One line for people: its time of day here, level, service, event, and its fields."""
    from datetime import datetime  # noqa: PLC0415

    from rich.text import Text  # noqa: PLC0415

    at = datetime.fromtimestamp(line.time_s).strftime("%H:%M:%S.%f")[:-3]
    text = Text(f"{at} {line.level:<7} ", style=_STYLES.get(line.level, ""))
    text.append(f"{line.service:<10} ", style="cyan")
    text.append(line.event)
    for name, shown in line.shown_fields():
        text.append(f" {name}=", style="dim").append(shown)
    return text


def parse_since(text: str, now_s: float) -> float:
    """The moment in seconds since 1970; an empty text stands for the beginning.

    Raises:
        CommandError: It is neither a span nor a time.
    """
    if not text:
        return 0.0
    span = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if span is not None:
        return now_s - float(span[1]) * _UNITS_S[span[2]]
    try:
        return datetime.fromisoformat(text).timestamp()  # without a zone, the machine's
    except ValueError:
        fail(f"`--since` is a span such as 90s, 10m, 2h or 1d, or a time in ISO 8601, got {text!r}.", 2)
