"""`ryz bench failover`: options, stack and table of the failover benchmark."""

import asyncio
import logging
import sys
from dataclasses import replace

import structlog
import typer

from benchmarks.engine_plans import model_name
from benchmarks.stack_plans import FailoverPlan
from cli.bench.inputs import with_model
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err, fail
from cli.stack.model_dir import demo_model


@with_options
def failover(plan: FailoverPlan, *, as_json: AsJson = False) -> None:
    """Kill ranks and leaders under streams: are all streams whole and equal, and how long do they pause?

    Two groups, half of the streams greedy and half at temperature 1, some with two choices, stop strings,
    penalties and log probabilities; each is compared with its own run without faults. With `--structured` the
    answers are objects under schemas and tool calls, all at temperature 1, up to four choices each, and are
    checked against their schemas. With `--adapters` streams have adapters of the model. Exit code 1: some
    were not equal, lost or invalid, or a group did not come back, or Ctrl-C; the counts are then those until
    there.
    """
    from benchmarks.failover.failover import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    # The client logs each loss. The bar shows enough, and stdout is for the result.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    plan = with_model(plan)
    if plan.adapters and plan.model is None:
        plan = replace(plan, model=demo_model())
    command = {"--groups": 2, "--tensor-parallel": plan.tensor_parallel, "--log-level": "warning"}
    command |= {"--model": plan.model} if plan.model is not None else {}
    with reporting("failover", _show, as_json=as_json) as report:
        err.print("starting a stack", style="dim")
        with counting_bar(plan.kills + 1 + bool(plan.calm)) as progress, own_stack(command) as stack:
            report.update(asyncio.run(measure(stack, plan, progress)))
        report.update({"model": model_name(plan.model), "tp": plan.tensor_parallel, "seed": plan.seed})
    if report["gave_up"]:
        fail(f"The measurement ended after {report['kills']} of {plan.kills} faults: {report['gave_up']}.")
    if report["unequal"] or report["lost"] or (report["validity"] or {}).get("invalid"):
        raise typer.Exit(1)


def _show(report: Report) -> None:
    parts = report["breakdown_ms"]
    spreads = {
        "pause of a stream whose group was hit": report["pause_ms"],
        "  until the loss was known": parts["detect"],
        "  until another group had it": parts["republish"],
        "  until tokens came": parts["first_token"],
        "    of which one fetch of KV": parts["fetch"],
        "first frame of a request that had none, after the fault": report["unbegun_ms"],
        "pause of other streams": report["others_ms"],
        "between frames without faults": report["calm_ms"],
    }
    what = "freezes" if report["freezes"] else "kills"
    title = f"{report['kills']} {what} under {report['concurrency']} streams"
    rows = [{"what": what, **spread} for what, spread in spreads.items()]
    columns = {
        "ms": "{what}",
        "p50": "{p50:,.1f}",
        "p95": "{p95:,.1f}",
        "p99": "{p99:,.1f}",
        "max": "{max:,.1f}",
    }
    print_table(title, rows, columns)
    print_line(
        f"{report['streams']} streams, {report['interrupted']} interrupted, {report['unequal']} unequal, "
        f"{report['lost']} lost, {report['hung']} of them hung; a group was back after "
        f"{report['back_s']['p50']:.2f} s (p99 {report['back_s']['p99']:.2f} s)"
    )
    calm = report["without_faults"]
    if calm["seconds"]:
        print_line(
            f"{calm['streams_moved']} streams moved for no reason in {calm['seconds']:g} s without faults"
        )
    if validity := report["validity"]:
        print_line(
            f"{validity['valid']} answers valid under their schemas, {validity['cut']} cut at their length, "
            f"{len(validity['invalid'])} invalid"
        )
        for answer in validity["invalid"]:
            print_line(answer)
    for failure in report["failures"]:
        print_line(failure)
