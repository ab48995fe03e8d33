"""`ryz bench kv`: options and table of the benchmark of KV cache types."""

from benchmarks.engine_plans import KVColdPlan
from cli.bench.report import AsJson, Report, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err, fail


@with_options
def kv(plan: KVColdPlan, *, as_json: AsJson = False) -> None:
    """Time of an attention op and memory of a token: KV cache in fp32, fp16, and fp8 behind a hot zone.

    One op is that of one layer, for one token of each sequence.
    """
    from benchmarks.kv.kv_cold import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    if plan.heads % plan.kv_heads:
        fail(
            f"--kv-heads {plan.kv_heads} does not divide --heads {plan.heads}; take a divisor of it.",
            exit_code=2,
        )
    with reporting("kv", _show, as_json=as_json) as report:
        err.print("measuring", style="dim")
        report.update(measure(plan))


def _show(report: Report) -> None:
    kinds = list(report["rows"][0]["attention_us"])
    columns = {"context": "{context:,}"}
    columns |= {f"{kind} us": f"{{attention_us[{kind}]:,.0f}}" for kind in kinds}
    columns |= {f"{kind} bytes/token": f"{{bytes_per_token[{kind}]:,.0f}}" for kind in kinds}
    columns |= {"less than bf16": "{less_than_bf16:.1%}"}
    print_table(f"one layer's attention, batch {report['batch']}", report["rows"], columns)
    print_line(
        f"compressing one block of one layer takes {report['compress_block_us']} us, once in 16 tokens"
    )
