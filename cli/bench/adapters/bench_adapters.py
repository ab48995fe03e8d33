"""`ryz bench adapters`: options, checks and table of steps whose sequences have different adapters."""

from benchmarks.engine_plans import AdaptersPlan
from cli.bench.inputs import require_context, require_model, with_model
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options


@with_options
def adapters(plan: AdaptersPlan, *, as_json: AsJson = False) -> None:
    """Decode steps of sequences that all have different adapters, in turns with steps of the base alone.

    The forward pass of one rank, with random adapters for the same matrices of all layers.

    Examples:
        ryz bench adapters --model smollm2-135m --precision fp32,int8 --ranks 16 --batches 8
        ryz bench adapters --model smollm2-135m --targets q,v
    """
    from benchmarks.engine.adapters import measure, num_steps  # noqa: PLC0415 (keeps `--help` quick)

    plan = with_model(plan)
    require_context(require_model(plan.model), "--prompt and --turns", plan.length)
    with reporting("adapters", _show, as_json=as_json) as report, counting_bar(num_steps(plan)) as progress:
        report.update(measure(plan, progress))


def _show(report: Report) -> None:
    columns = {
        "": "{precision}", "rank": "{rank}", "batch": "{batch}", "MiB each": "{mib:,.1f}",
        "base tok/s": "{base_tokens_per_s:,.1f}", "tok/s": "{tokens_per_s:,.1f}",
        "of base": "{different_to_base:.0%}",
    }  # fmt: skip
    rows = [row | {"mib": row["adapter_bytes"] / 2**20} for row in report["rows"]]
    print_table(f"{report['model']}, adapters of {', '.join(report['targets'])}", rows, columns)
    facts = report["machine"]
    print_line(f"{facts['cpu']}, {facts['usable_cores']} cores, load {facts['load_average_1m']}")
