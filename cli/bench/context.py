"""`ryz bench context`: options, checks and table of the benchmark of long contexts."""

from benchmarks.engine_plans import ContextPlan
from cli.bench.inputs import require_context, require_model, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options
from cli.console import fail
from services.worker.rank_protocol.page_policy import FULL, page_policy


@with_options
def context(plan: ContextPlan, *, as_json: AsJson = False) -> None:
    """Time and perplexity of tokens over long contexts: exact, KV in fp8, and policies of attention.

    Memory is that of the KV cache of a group for one sequence of that length.
    """
    from benchmarks.context.context import measure, num_steps  # noqa: PLC0415 (keeps `--help` quick)

    for text in plan.attention:
        try:
            page_policy(text)
        except ValueError as error:
            fail(f"--attention {text}: {error}.", exit_code=2)
        if text == FULL:
            fail("--attention full is measured in any case; leave it out.", exit_code=2)
    plan = with_model(plan)
    require_context(
        require_model(plan.model), "--contexts and --tokens", max(plan.contexts) + plan.tokens + 1
    )
    with reporting("context", _show, as_json=as_json) as report, counting_bar(num_steps(plan)) as progress:
        report.update(measure(plan, progress))


def _show(report: Report) -> None:
    columns = {
        "context": "{context:,}", "": "{case}", "ms/token": "{token_ms:.2f}", "of exact": "x{of_exact:.2f}",
        "of shortest": "x{of_shortest:.2f}", "perplexity": "{perplexity:.3f}",
        "change": "{perplexity_change:+.2%}", "KV MiB": "{kv_mib:,.1f}",
    }  # fmt: skip
    rows = [row | {"kv_mib": row["kv_bytes"] / 2**20} for row in report["rows"]]
    print_table(f"{report['model']}, {report['tokens']} tokens at each context", rows, columns)
