"""`ryz bench collectives`: options and table of the all-reduce benchmark."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from benchmarks.lib.options import Numbers, Words
from cli.bench.bench_report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options
from cli.console import fail


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesOptions:
    """The options of `ryz bench collectives`."""

    ranks: Annotated[int, Option(min=2, max=64, help="Ranks that take part.")] = 2
    backends: Annotated[
        Sequence[str], Option(help="shm or gloo, or both with a comma."), Words(("shm", "gloo"))
    ] = ("shm", "gloo")
    sizes: Annotated[Sequence[int], Option(help="Bytes to sum, multiples of 4."), Numbers(1 << 30)] = (
        8192,
        10_000_000,
    )


@with_options
def collectives(options: CollectivesOptions, *, as_json: AsJson = False) -> None:
    """Time of an all-reduce between ranks on this machine, beside a memory copy of the same bytes."""
    from benchmarks.collectives.collectives import measure, num_steps  # noqa: PLC0415 (keeps `--help` quick)

    if wrong := [size for size in options.sizes if size % 4]:
        fail(f"--sizes takes multiples of 4, the size of a float, got {wrong[0]}.", exit_code=2)
    with (
        reporting(_show, as_json=as_json) as report,
        counting_bar(num_steps(options.backends, options.sizes)) as progress,
    ):
        report["rows"] = asyncio.run(measure(options.ranks, options.backends, options.sizes, progress))


def _show(report: Report) -> None:
    columns = {
        "backend": "{backend}", "ranks": "{ranks}", "bytes": "{bytes:,}", "p50 us": "{p50_us:,.1f}",
        "p99 us": "{p99_us:,.1f}", "copy p50 us": "{copy_p50_us:,.1f}",
        "times of a copy": "{times_of_copy:.1f}",
    }  # fmt: skip
    print_table("all-reduce", report["rows"], columns)
