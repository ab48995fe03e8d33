"""`ryz bench`: names its commands; `serving` measures a stack that it brings itself (or one that runs).

With --json one object goes to stdout and nothing else; progress always goes to stderr. How it is measured
stands in `benchmarks/`.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli.bench.bench_collectives import collectives
from cli.bench.bench_compare import compare
from cli.bench.bench_engine import engine
from cli.bench.bench_failover import failover
from cli.bench.bench_kv import kv
from cli.bench.bench_model import make_model
from cli.bench.bench_options import numbers
from cli.bench.bench_overflow import overflow
from cli.bench.bench_routing import routing
from cli.bench.bench_sessions import sessions
from cli.console import err, fail, out

app = typer.Typer(
    no_args_is_help=True,
    help="Measure the serving path, the engine and its parts; compare results.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def bench() -> None:
    """Measure the serving path, the engine and its parts; compare results."""


for command in (engine, failover, overflow, routing, sessions, kv, collectives, make_model, compare):
    app.command(command.__name__.replace("_", "-"))(command)


@app.command()
def serving(  # noqa: PLR0917 (typer takes options as arguments)
    concurrency: Annotated[
        str, typer.Option(help="Requests in flight, one level after the other.")
    ] = "1,8,32,128",
    duration: Annotated[float, typer.Option(min=0.2, help="Measured seconds at each level.")] = 5.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Seconds before that at each level.")] = 1.0,
    tokens: Annotated[int, typer.Option(min=1, max=4096, help="Tokens that each answer has.")] = 16,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Ask for streamed answers.")] = False,
    url: Annotated[str, typer.Option(help="Measure the stack at this address instead of an own one.")] = "",
    model: Annotated[str, typer.Option(help="The model to ask, with --url.")] = "demo",
    groups: Annotated[int, typer.Option(min=1, max=16, help="Worker groups of the own stack.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Requests a second, latencies and CPU of the whole path, with an engine that computes nothing.

    Starts broker, store, kvstate, router, worker groups and gateway, loads them with chat completions that
    belong to no session, checks every answer, and takes all down again. What is not complete is an error.
    """
    from benchmarks.lib.machine import commit, machine  # noqa: PLC0415 (keeps `ryz --help` quick)
    from benchmarks.lib.stack import started  # noqa: PLC0415
    from benchmarks.serving.serving import BenchFailed, Plan, measure  # noqa: PLC0415

    levels = numbers("--concurrency", concurrency, 4096)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what was started is ended
    facts = {"machine": machine(), "commit": commit()}
    with ExitStack() as cleanup:
        if url:
            plan_url, plan_model, pids = url.rstrip("/"), model, dict[str, int]()
        else:
            err.print("starting a stack", style="dim")
            stack = cleanup.enter_context(started(["--engine", "null", "--groups", str(groups)]))
            plan_url, plan_model, pids = stack.url, stack.model, stack.pids
        plan = Plan(plan_url, plan_model, levels, duration, warmup, tokens, stream, pids)
        try:
            with _bar(len(levels), duration + warmup) as show:
                measured = asyncio.run(measure(plan, show))
        except BenchFailed as error:
            fail(f"The measurement failed: {error}.")
    cpu = max(measured, key=lambda level: int(level.figures["concurrency"])).cpu_ms_per_request
    report = {"rows": [level.row(stream) for level in measured], "cpu_ms_per_request": cpu, **facts}
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        _print(report)


@contextmanager
def _bar(levels: int, level_s: float) -> Iterator[Any]:
    """A bar that moves with the time: the generator must not be disturbed to ask it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task("starting", total=levels * 2)

        def show(concurrency: int, phase: str) -> None:
            progress.update(task, description=f"concurrency {concurrency}: {phase}", advance=1)

        yield show


def _print(report: dict[str, Any]) -> None:
    columns = list(report["rows"][0])
    table = Table(*columns, title="serving path")
    for row in report["rows"]:
        table.add_row(*(f"{row.get(name)}" for name in columns))
    out.print(table)
    cpu = Table("service", "CPU ms per request", title="at the highest concurrency")
    for name, value in report["cpu_ms_per_request"].items():
        cpu.add_row(name, f"{value:.3f}")
    cpu.add_row("all", f"{sum(report['cpu_ms_per_request'].values()):.3f}", style="bold")
    out.print(cpu)
    facts = report["machine"]
    out.print(
        f"{facts['cpu']}, {facts['usable_cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}, "
        f"Python {facts['python']}, commit {report['commit']}"
    )
