"""The report, the bar of progress and the tables that all benches share.

With --json one object goes to stdout and nothing else; progress always goes to stderr.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine
from benchmarks.lib.measuring import BenchError
from cli.console import err, fail, out

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Report = dict[str, Any]


@contextmanager
def reporting(
    bench: str, show: Callable[[Report], None], *, as_json: bool, packages: Sequence[str] = ENGINE_PACKAGES
) -> Iterator[Report]:
    """Give an empty report to fill in; print it at the end, with the facts of the machine and the commit.

    Args:
        bench: Name of the command.
        show: Prints the report for people.
        as_json: Prints JSON instead of tables.
        packages: Packages whose versions are stated.

    Raises:
        CommandError: The measurement failed.
    """
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415 (keeps `--help` quick)
    from services.worker.engine.native.build import NoKernels  # noqa: PLC0415
    from services.worker.rank_protocol.failures import EngineFailed  # noqa: PLC0415
    from shared.errors import RyzError  # noqa: PLC0415

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: started processes are ended
    # before the measurement, for the load average
    facts = {"bench": bench, "machine": machine(packages), "commit": commit()}
    report: Report = {}
    try:
        yield report
    except (BenchError, EngineFailed, ModelError, NoKernels) as error:
        fail(f"The measurement failed: {error}.")
    except RyzError as error:
        fail(f"The measurement failed: {error.message}.")
    report |= facts
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        show(report)


@contextmanager
def counting_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Give the callback for progress: called at the beginning of each of `total` steps, with its name.

    The bar is drawn with the steps and rarely else, because drawing takes time from the measurement. A log
    gets lines instead.
    """
    if not err.is_terminal:
        yield lambda what: err.print(what, style="dim", soft_wrap=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True, refresh_per_second=1) as bar:
        task = bar.add_task("starting", total=total)
        begun = False

        def show(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, advance=1 if begun else 0)
            begun = True

        yield show


def print_table(
    title: str, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], **style: Any
) -> None:
    """Print a table unless it has no rows.

    Args:
        rows: The rows of a report.
        columns: Format of each column by its header, such as `{"p50": "{step_ms[p50]:.2f}"}`.
        style: Further arguments of rich's `Table`.
    """
    table = Table(*columns, title=title, **style)
    for row in rows:
        table.add_row(*(text.format(**row) for text in columns.values()))
    if table.row_count:
        out.print(table)


def print_line(text: str) -> None:
    """Print a line of a report, unwrapped."""
    out.print(text, soft_wrap=True)


def warn(text: str) -> None:
    """Print a remark to stderr."""
    err.print(text, style="yellow", soft_wrap=True)
