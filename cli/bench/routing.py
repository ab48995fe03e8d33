"""`ryz bench routing`: options and tables of the routing policies against modelled groups."""

from benchmarks.lib.machine import SERVING_PACKAGES
from benchmarks.stack_plans import RoutingPlan
from cli.bench.report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options


@with_options
def routing(plan: RoutingPlan, *, as_json: AsJson = False) -> None:
    """How evenly each policy spreads work, how much KV it has fetched or recomputed, and its speed.

    The router's own code runs against modelled groups in virtual time. Decisions are timed in real time.
    """
    from benchmarks.routing.routing import route  # noqa: PLC0415 (keeps `ryz bench --help` quick)
    from benchmarks.routing.routing_time import decision_times  # noqa: PLC0415

    with (
        reporting("routing", _show, as_json=as_json, packages=SERVING_PACKAGES) as report,
        counting_bar(len(plan.policies) + 1) as progress,
    ):
        report["rows"] = []
        for name in plan.policies:
            progress(f"routing with {name}")
            report["rows"].append(route(plan, name))
        progress("timing decisions")
        report["decisions"] = decision_times(plan.sizes)


def _show(report: Report) -> None:
    columns = {
        "policy": "{policy}", "tokens": "{imbalance_tokens:.1%}", "busy time": "{imbalance_busy:.1%}",
        "requests": "{imbalance_requests:.1%}", "hit rate": "{hit_rate:.1%}", "fetched": "{fetched_rate:.1%}",
        "TTFT p50 ms": "{ttft_p50_ms:,.1f}", "p95 ms": "{ttft_p95_ms:,.1f}",
        "p99 ms": "{ttft_p99_ms:,.1f}", "use": "{use:.0%}",
    }  # fmt: skip
    print_table("excess of the busiest group over its share, and what it costs", report["rows"], columns)
    times = {
        "groups": "{groups:,}", "choose p50 us": "{choose_p50_us:,}", "choose p99 us": "{choose_p99_us:,}",
        "decide p50 us": "{decide_p50_us:,}", "decide p99 us": "{decide_p99_us:,}",
    }  # fmt: skip
    print_table("decisions", report["decisions"], times)
