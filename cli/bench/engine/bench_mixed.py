"""`ryz bench mixed`: options, checks and table of token times under a mixed load."""

import asyncio

from benchmarks.engine_plans import MixedPlan
from cli.bench.inputs import require_context, require_model, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options


@with_options
def mixed(plan: MixedPlan, *, as_json: AsJson = False) -> None:
    """Token times of sequences that decode, and times to first token of the prompts that come meanwhile.

    Greedy, with random prompts that share nothing, the targets in turns. `within` is the share of seconds
    whose 99th percentile of the time between two tokens is within the target; without a target it is judged
    by the first one.
    """
    from benchmarks.engine.mixed_load import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    plan = with_model(plan)
    config = require_model(plan.model, [plan.tensor_parallel])
    require_context(config, f"--prompt {plan.prompt} and an answer", plan.prompt + 1)
    steps = plan.rounds * len(plan.targets)
    with reporting("mixed", _show, as_json=as_json) as report, counting_bar(steps) as progress:
        report.update(asyncio.run(measure(plan, progress)))


def _show(report: Report) -> None:
    columns = {
        "target ms": "{target_ms}", "ITL p50": "{itl_p50_ms:,.1f}",
        "p95": "{itl_p95_ms:,.1f}", "p99": "{itl_p99_ms:,.1f}",
        "worst second": "{worst_second_p99_ms:,.1f}", "within": "{seconds_within:.1%}",
        "TTFT p50": "{ttft_p50_ms:,.0f}", "p99 ": "{ttft_p99_ms:,.0f}", "answered": "{answered} of {prompts}",
        "cut steps": "{cut_steps}",
    }  # fmt: skip
    print_table(
        f"{report['model']} {report['precision']}, tp {report['tp']}, {report['streams']} streams",
        report["rows"],
        columns,
    )
    print_line(f"a prompt of {report['prompt']} tokens every {report['interval_s']:g} s; times in ms")
