"""`ryz bench soak`: options, stack and summary of the soak."""

import asyncio
import logging
import sys

import structlog
import typer

from benchmarks.lib.machine import commit, machine
from benchmarks.soak.plan import SoakPlan
from cli.bench.inputs import with_model
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err, make_writable

_START_S = 300.0  # hours follow: a busy machine may take its time


@with_options
def soak(plan: SoakPlan, *, as_json: AsJson = False) -> None:
    """Run a stack for hours under mixed load and random faults: is it available, and does anything leak?

    Two groups, two routers. Clients stream, ask for whole answers, hold sessions, ask for JSON under a
    schema, or leave their streams. About once a minute a random process is killed or frozen: a rank, a
    leader, a router, the KV state service, a store, the broker or the gateway; the next one follows when all
    is ready again. The report has availability, MTTR, MTBF, errors by kind, growth and plots. Exit code 1: a
    part never came back.

    Examples:
        ryz bench soak --hours 2 -o soak
    """
    from benchmarks.soak.soak import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    # connections report each loss of the broker; stdout is for the result
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    plan = with_model(plan)
    make_writable(plan.output.absolute().parent, "--output")
    options = {
        "--groups": 2,
        "--routers": 2,
        "--tensor-parallel": plan.tensor_parallel,
        "--log-level": "warning",
    }
    options |= {"--model": plan.model} if plan.model is not None else {}
    words = f"--hours {plan.hours:g} --every {plan.every:g} --clients {plan.clients} --seed {plan.seed}"
    about = {"machine": machine(), "commit": commit(), "command": f"ryz bench soak {words}"}
    with reporting("soak", _show, as_json=as_json) as report:
        err.print("starting a stack", style="dim")
        faults = max(1, round(plan.hours * 3600 / plan.every))
        with counting_bar(faults) as progress, own_stack(options, timeout_s=_START_S) as stack:
            report.update(asyncio.run(measure(stack, plan, progress, about)))
        report["report"] = str(plan.output / "report.md")
    if report["not_repaired"]:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    availability = report["availability"]
    answered = f"{availability:.4%}" if availability is not None else "none"
    print_line(
        f"{report['hours']:g} h: {report['requests']:,} requests, {answered} answered, "
        f"{report['failed']} failed in {report['incidents']} incidents; MTBF "
        f"{report['mtbf_s'] or 'without an incident'}"
    )
    print_line(
        f"{report['faults']} faults, {report['not_repaired']} not repaired; MTTR {report['mttr_s']} s (p99 "
        f"{report['repair_s']['p99']:.2f} s)"
    )
    rows = [{"error": error, "count": count} for error, count in report["errors"].items()]
    print_table("Errors", rows, {"error": "{error}", "requests": "{count}"})
    grown = [
        {
            "service": name,
            **one,
            "slope": one["memory_mib_per_hour"] if one["memory_mib_per_hour"] is not None else "-",
        }
        for name, one in report["leaks"].items()
    ]
    columns = {"service": "{service}", "starts": "{starts}", "MiB": "{memory_mib:g}", "MiB/h": "{slope}"}
    print_table("Growth", grown, columns | {"files": "{files} ({files_grown:+})"})
    print_line(report["report"])
