"""`ryz bench collectives`: options and table of the all-reduce benchmark."""

import asyncio

from benchmarks.engine_plans import CollectivesPlan
from cli.bench.report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options
from cli.console import fail


@with_options
def collectives(plan: CollectivesPlan, *, as_json: AsJson = False) -> None:
    """Time of an all-reduce between ranks on this machine, beside a memory copy of the same bytes."""
    from benchmarks.collectives.collectives import measure  # noqa: PLC0415 (keeps `--help` quick)

    if wrong := [size for size in plan.sizes if size % 4]:
        fail(f"--sizes takes multiples of 4, the size of a float, got {wrong[0]}.", exit_code=2)
    with (
        reporting("collectives", _show, as_json=as_json) as report,
        counting_bar(len(plan.backends) * (1 + len(plan.sizes))) as progress,
    ):
        report["rows"] = asyncio.run(measure(plan, progress))


def _show(report: Report) -> None:
    columns = {
        "backend": "{backend}", "ranks": "{ranks}", "bytes": "{bytes:,}", "p50 us": "{p50_us:,.1f}",
        "p95 us": "{p95_us:,.1f}", "p99 us": "{p99_us:,.1f}", "copy p50 us": "{copy_p50_us:,.1f}",
        "times of a copy": "{times_of_copy:.1f}",
    }  # fmt: skip
    print_table("all-reduce", report["rows"], columns)
