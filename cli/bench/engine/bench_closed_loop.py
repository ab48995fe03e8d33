"""`ryz bench closed-loop`: options, checks and table of whole requests against prompts and tokens alone."""

import asyncio

from benchmarks.engine.closed_loop_plan import ClosedLoopPlan
from cli.bench.inputs import require_context, require_model, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options


@with_options
def closed_loop(plan: ClosedLoopPlan, *, as_json: AsJson = False) -> None:
    """Tokens a second of whole requests, some at once, and what their prompts and tokens cost alone.

    Greedy, with random prompts that share nothing, the targets in turns. `share of sum` is the time of the
    prompts alone and of the tokens alone, with as many sequences, over the time of the requests.
    """
    from benchmarks.engine.closed_loop import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    plan = with_model(plan)
    config = require_model(plan.model, [plan.tensor_parallel])
    length = plan.prompt + plan.tokens
    require_context(config, f"--prompt {plan.prompt} and --tokens {plan.tokens}", length)
    with (
        reporting("closed-loop", _show, as_json=as_json) as report,
        counting_bar(plan.rounds * len(plan.targets)) as progress,
    ):
        report.update(asyncio.run(measure(plan, progress)))


def _show(report: Report) -> None:
    columns = {
        "target ms": "{target_ms}", "tok/s": "{tokens_per_s:,.0f}", "by the sum": "{sum_tokens_per_s:,.0f}",
        "share of sum": "{share_of_sum:.2f}", "prefill alone": "{prefill_tokens_per_s:,.0f}",
        "decode alone": "{decode_tokens_per_s:,.0f}", "TTFT p50": "{ttft_p50_ms:,.0f}",
        "ITL p50": "{itl_p50_ms:,.1f}", "p99": "{itl_p99_ms:,.1f}",
    }  # fmt: skip
    print_table(
        f"{report['model']} {report['precision']}, {report['requests']} requests of {report['prompt']} and "
        f"{report['tokens']} tokens, {report['at_once']} at once",
        report["rows"],
        columns,
    )
