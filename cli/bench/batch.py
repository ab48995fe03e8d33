"""`ryz bench batch`: options and tables of what a batch costs interactive requests."""

import asyncio
from contextlib import ExitStack

from benchmarks.lib.machine import SERVING_PACKAGES
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import BatchPlan
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err
from cli.models.resolve import resolve_model


@with_options
def batch(plan: BatchPlan, *, as_json: AsJson = False) -> None:
    """Time to first token of interactive requests, alone and beside a batch.

    Rounds with the batch and rounds while it is paused alternate, with equal requests. Starts a stack and
    takes it down again, unless one is named.
    """
    from benchmarks.batch.batch import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    with (
        reporting("batch", _show, as_json=as_json, packages=SERVING_PACKAGES) as report,
        ExitStack() as cleanup,
    ):
        if plan.url:
            stack = RunningStack(plan.url.rstrip("/"), plan.model or "demo")
        else:
            err.print("starting a stack", style="dim")
            command: dict[str, object] = {"--groups": plan.groups, "--engine": plan.engine}
            command |= {"--model": resolve_model(plan.model)} if plan.model else {}
            stack = cleanup.enter_context(own_stack(command))
        progress = cleanup.enter_context(counting_bar(2 * plan.rounds + 1))
        report.update(asyncio.run(measure(plan, stack, progress)))
        report.update(engine=plan.engine, model=stack.model, rate=plan.rate)


def _show(report: Report) -> None:
    names = list(report["rows"][0])
    print_table("interactive requests", report["rows"], {name: f"{{{name}}}" for name in names})
    ratios = ", ".join(f"{name} {value:.3f}" for name, value in report["ratios"].items())
    print_line(f"with the batch / alone: {ratios}; the batch did {report['batch_requests_per_s']} requests/s")
    facts = report["machine"]
    print_line(f"{facts['cpu']}, {facts['usable_cores']} cores, commit {report['commit']}")
