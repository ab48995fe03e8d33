"""`ryz bench collectives`: options, progress and the table of the all-reduce benchmark."""

import asyncio
import json
import signal
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.bench.bench_options import choice, numbers
from cli.bench.bench_progress import counting_bar
from cli.console import fail, out

_MOST_BYTES = 1 << 30


def collectives(
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Ranks that take part.")] = 2,
    backends: Annotated[str, typer.Option(help="shm or gloo, or both with a comma.")] = "shm,gloo",
    sizes: Annotated[str, typer.Option(help="Bytes to sum, multiples of 4.")] = "8192,10000000",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Time of an all-reduce between ranks on this machine, beside a memory copy of the same bytes."""
    from benchmarks.collectives.collectives import BACKENDS, measure, num_steps  # noqa: PLC0415
    from benchmarks.lib.child import ChildError  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine  # noqa: PLC0415

    names = [choice("--backends", name, BACKENDS) for name in backends.split(",")]
    lengths = numbers("--sizes", sizes, _MOST_BYTES)
    if any(length % 4 for length in lengths):
        fail(f"--sizes takes multiples of 4, the size of a float, got {sizes!r}.", exit_code=2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is ended
    facts = {"machine": machine(ENGINE_PACKAGES), "commit": commit()}
    try:
        with counting_bar(num_steps(names, lengths)) as progress:
            rows = asyncio.run(measure(ranks, names, lengths, progress))
    except ChildError as error:
        fail(f"The measurement failed: {error}.")
    if as_json:
        sys.stdout.write(json.dumps({"rows": rows, **facts}, indent=1) + "\n")
    else:
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "backend", "ranks", "bytes", "p50 us", "p99 us", "copy p50 us", "times of a copy", title="all-reduce"
    )
    for row in rows:
        table.add_row(
            row["backend"], str(row["ranks"]), f"{row['bytes']:,}", f"{row['p50_us']:,.1f}",
            f"{row['p99_us']:,.1f}", f"{row['copy_p50_us']:,.1f}", f"{row['times_of_copy']:.1f}",
        )  # fmt: skip
    out.print(table)
