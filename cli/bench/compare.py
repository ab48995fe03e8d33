"""`ryz bench compare`: table and exit code of the comparison of two results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from benchmarks.lib.measuring import BenchError
from cli.bench.report import print_line, warn
from cli.console import fail, out

if TYPE_CHECKING:
    from benchmarks.compare.compare import FigureChange


def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="What `ryz bench ... --json` printed before.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="What it printed now.")],
    threshold: Annotated[str, typer.Option(help="How much worse a figure may be, in percent.")] = "5%",
) -> None:
    """Compare two results of the same bench; the exit code is 1 when a figure got worse than allowed.

    Results of all benches are understood. On different machines the comparison says so, and means little.
    """
    from benchmarks.compare.compare import compare_files  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    percent = _percent(threshold)
    allowed = percent / 100
    try:
        found = compare_files(old, new)
    except BenchError as error:
        fail(f"{error}.", exit_code=2)
    worse = found.regressions(allowed)
    table = Table("row", "figure", "old", "new", "change", title=f"{old.name} and {new.name}")
    for change in found.changes:
        style = "red" if change in worse else "green" if change.worse_by < -allowed else ""
        cells = (change.row, change.figure, f"{change.old:g}", f"{change.new:g}", _text(change))
        table.add_row(*cells, style=style)
    out.print(table)
    for text, rows in (("only in the old file", found.only_old), ("only in the new file", found.only_new)):
        for row in rows:
            warn(f"{text}: {row}")
    if found.machines:
        warn(f"The machines differ: {'; '.join(found.machines)}.")
    if worse:
        names = "; ".join(f"{change.figure} of {change.row} ({_text(change)})" for change in worse)
        fail(f"Worse by more than {percent:g}%: {names}.")
    print_line(f"Nothing is worse by more than {percent:g}%.")


def _percent(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        fail(f"--threshold takes a percentage from 0 to 100, such as 5%, got {text!r}.", exit_code=2)
    return percent


def _text(change: "FigureChange") -> str:
    """Return the change of the value itself, with its sign."""
    if change.old == 0:
        return "from 0" if change.new else "same"
    return f"{(change.new - change.old) / change.old:+.1%}"
