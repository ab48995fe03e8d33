"""`ryz bench failover`: the options, the stack, the bar and the table around `failover.py`."""

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.table import Table

from cli.bench.bench_progress import counting_bar
from cli.console import err, fail, out


def failover(  # noqa: PLR0917 (typer takes options as arguments)
    kills: Annotated[int, typer.Option(min=0, max=100_000, help="Ranks and leaders to kill.")] = 100,
    streams: Annotated[int, typer.Option(min=1, max=4096, help="Streams that are read at a time.")] = 32,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each stream.")] = 128,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Freeze leaders for a while instead of killing.")
    ] = False,
    calm: Annotated[float, typer.Option(min=0.0, help="Seconds without faults, for false alarms.")] = 0.0,
    model: Annotated[Path | None, typer.Option(help="Model directory; left out: the demo model.")] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, max=64, help="Ranks of each group.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the choice of victims.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Kill ranks and leaders under streams: are all streams whole and equal, and how long do they pause?

    Two groups, half of the streams greedy and half at temperature 1, some with two choices, stop strings,
    penalties and log probabilities; each is compared with its own run without faults. Exit code 1: some were
    not equal, or lost.
    """
    from benchmarks.failover.failover import Plan, measure  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.failover.failover_fleet import FailoverError  # noqa: PLC0415
    from benchmarks.lib.machine import ENGINE_PACKAGES, commit, machine  # noqa: PLC0415
    from benchmarks.lib.stack import started  # noqa: PLC0415
    from shared.errors import RyzError  # noqa: PLC0415

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is ended
    # the client speaks of each loss; the bar says enough, and stdout is for the result
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    facts = {"machine": machine(ENGINE_PACKAGES), "commit": commit()}
    words = ["--groups", "2", "--tensor-parallel", str(tensor_parallel), "--log-level", "warning"]
    if model is not None:
        words += ["--model", str(model)]
    err.print("starting a stack", style="dim")
    try:
        with counting_bar(kills + 1 + bool(calm)) as progress, started(words) as stack:
            plan = Plan(stack.model, kills, streams, tokens, seed, freeze, calm)
            report = asyncio.run(measure(stack.nats_urls, plan, progress))
    except FailoverError as error:
        fail(f"The measurement failed: {error}.")
    except RyzError as error:
        fail(f"The measurement failed: {error.message}.")
    report |= {"tp": tensor_parallel, "seed": seed, **facts}
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        _print(report)
    if report["unequal"] or report["lost"]:
        raise typer.Exit(1)


def _print(report: dict[str, Any]) -> None:
    fault = "freezes" if report["freezes"] else "kills"
    table = Table(
        "ms", "p50", "p99", "max", title=f"{report['kills']} {fault} under {report['concurrency']} streams"
    )
    rows = {
        "pause of a stream whose group was hit": report["pause_ms"],
        "  until the loss was known": report["breakdown_ms"]["detect"],
        "  until another group had it": report["breakdown_ms"]["republish"],
        "  until tokens came": report["breakdown_ms"]["first_token"],
        "    of which one fetch of KV": report["breakdown_ms"]["fetch"],
        "pause of other streams": report["others_ms"],
        "between frames without faults": report["calm_ms"],
    }
    for name, values in rows.items():
        table.add_row(name, *(f"{values[key]:,.1f}" for key in ("p50", "p99", "max")))
    out.print(table)
    out.print(
        f"{report['streams']} streams, {report['interrupted']} interrupted, {report['unequal']} unequal, "
        f"{report['lost']} lost, {report['hung']} of them hung; a group was back after "
        f"{report['back_s']['p50']:.2f} s (p99 {report['back_s']['p99']:.2f} s)"
    )
    calm = report["without_faults"]
    if calm["seconds"]:
        out.print(
            f"{calm['streams_moved']} streams moved for no reason in {calm['seconds']:g} s without faults"
        )
    for failure in report["failures"]:
        out.print(failure, markup=False)
