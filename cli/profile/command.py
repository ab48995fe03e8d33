"""`ryz profile`: records groups for some seconds; `profile_file.py` makes the file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_groups import BrokerUrl, StateDirectory
from cli.command_options import with_options
from cli.stack.state import DEFAULT_DIR

if TYPE_CHECKING:
    from cli.profile.query import HeardLeader


@with_options
def profile(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("profile.json"),
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, max=60.0, help="How long.")] = 5.0,
    group: Annotated[str, typer.Option("--group", "-g", help="One group.  [default: all]")] = "",
    ops: Annotated[
        int,
        typer.Option(min=1, help="Ops that the ranks of a group record together at most."),
    ] = 400_000,
    nats_url: BrokerUrl = "",
    state_dir: StateDirectory = DEFAULT_DIR,
) -> None:
    """Record leaders, ranks, ops, collectives and messages of some seconds into one file, on one clock.

    The file opens in https://ui.perfetto.dev, chrome://tracing and speedscope. Exit code 1 if a group or a
    rank could not be recorded; what the others recorded is written all the same. A rank that hangs is waited
    for up to 15 s.

    Examples:
        ryz profile --seconds 5 --group g0 -o slow.json
    """
    import asyncio  # noqa: PLC0415 (keeps `ryz --help` quick)
    import logging  # noqa: PLC0415

    import structlog  # noqa: PLC0415

    from cli.console import fail, make_writable  # noqa: PLC0415
    from cli.profile.query import ProfileSession  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from cli.status.query import find_broker, no_broker  # noqa: PLC0415
    from shared.address import redact  # noqa: PLC0415
    from shared.errors import InvalidRequest, RyzError  # noqa: PLC0415

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    make_writable(output.absolute().parent, "--output")
    if output.is_dir():
        fail(f"{output} is a directory; name a file with `--output`.", exit_code=2)
    stack_dir = StateDir(state_dir)
    url = find_broker(nats_url, stack_dir)

    async def ask() -> "list[HeardLeader]":
        async with ProfileSession.connected(url, stack_dir, group or None) as session:
            await session.find_leaders()
            if session.leaders:
                await session.record(seconds, ops)
            return list(session.leaders.values())

    try:
        leaders = asyncio.run(ask())
    except RyzError as error:
        refused = isinstance(error, InvalidRequest)  # such as by a wrong password
        fail(f"{error.message}." if refused else no_broker(url))
    if not leaders:
        whose = f"No leader of group {group!r}" if group else "No leader"
        fail(f"{whose} answers at {redact(url)}; `ryz status` shows the groups.")
    problems = write_profile(leaders, output)
    if problems:
        fail("\n".join(problems))


def write_profile(leaders: "list[HeardLeader]", output: Path) -> list[str]:
    """Writes the file of what was recorded, and returns what could not be recorded."""
    import json  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415
    from cli.profile.profile_file import TimedRecording, profile_file  # noqa: PLC0415
    from shared.errors import RyzError  # noqa: PLC0415

    recordings, problems = list[TimedRecording](), list[str]()
    for leader in sorted(leaders, key=lambda one: one.group):
        if not (leader.asked or leader.recording):
            continue
        try:
            if leader.recording and not leader.problem:
                recordings.append(TimedRecording(leader.unpacked(), leader.offset()))
                continue
            why = leader.refused or leader.problem or "it did not answer"
        except RyzError as error:
            why = error.message
        problems.append(f"Group {leader.group} was not recorded: {why}.")
    if not recordings:
        return problems
    found = profile_file(recordings)
    problems += found.missing
    notes, found.notes = found.notes, [*found.notes, *problems]
    output.write_text(json.dumps(found.as_dict(), separators=(",", ":")), encoding="utf-8")
    names, size = ", ".join(one.recording.group for one in recordings), output.stat().st_size / 2**20
    lines = [f"{output}: {len(found.events)} events of {names}, {size:.1f} MiB"]
    if found.clocks:
        worst = max(float(clock["error_us"]) for clock in found.clocks)
        lines.append(f"  times of different processes compare to within {worst:,.0f} us")
    for line in [*lines, *(f"  {note}" for note in [*found.slow, *notes])]:
        out.print(line, soft_wrap=True)
    return problems
