"""`ryz bench sessions`: options, a stack for each policy, and tables of many sessions' turns."""

import asyncio

from benchmarks.engine_plans import model_name
from benchmarks.lib.measuring import BenchError
from benchmarks.stack_plans import SessionsPlan
from cli.bench.inputs import with_model
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_table, reporting
from cli.command_options import with_options

_START_S = 120.0
_PHASES = 4  # steps of progress for each policy
# There are more processes than cores: a service that waits for a core must not be taken for one that is away.
_SETTINGS = {"RYZ_THREADS": "1", "RYZ_KV_LOOKUP_TIMEOUT_S": "1"}


@with_options
def sessions(plan: SessionsPlan, *, as_json: AsJson = False) -> None:
    """How evenly each policy spreads the work of real groups, and how much of the sessions' KV it finds.

    Starts a whole stack for each policy and talks to it in sessions, a few of which have most of the turns.
    """
    from benchmarks.sessions.figures import row  # noqa: PLC0415 (keeps `ryz bench --help` quick)
    from benchmarks.sessions.sessions import measure  # noqa: PLC0415

    plan = with_model(plan)
    command = {
        "--groups": plan.groups, "--tensor-parallel": 1, "--log-level": "warning",
        "--start-timeout": _START_S,
    }  # fmt: skip
    command |= {"--model": plan.model} if plan.model is not None else {}
    with (
        reporting("sessions", _show, as_json=as_json) as report,
        counting_bar(_PHASES * len(plan.policies)) as progress,
    ):
        report["rows"] = []
        for policy in plan.policies:
            progress(f"{policy}: starting a stack")
            with own_stack({"--policy": policy, **command}, _SETTINGS, timeout_s=_START_S) as stack:
                try:
                    turns = asyncio.run(measure(plan, stack, lambda what: progress(f"{policy}: {what}")))  # noqa: B023 (called at once)
                except BenchError as error:
                    raise BenchError(f"{policy}: {error}") from error
            report["rows"].append(row(policy, turns))
        report |= {name: getattr(plan, name) for name in ("sessions", "zipf", "groups", "clients", "seed")}
        report["model"] = model_name(plan.model)


def _show(report: Report) -> None:
    policy = {"policy": "{policy}"}
    spread = {
        "tokens": "{imbalance_tokens:.1%}", "busy time": "{imbalance_busy:.1%}",
        "turns": "{imbalance_requests:.1%}",
    }  # fmt: skip
    print_table("busiest group over its share", report["rows"], policy | spread)
    found = {
        "hit rate": "{hit_rate:.1%}", "fetched": "{fetched_rate:.1%}", "TTFT p50 ms": "{ttft_p50_ms:,.1f}",
        "p95 ms": "{ttft_p95_ms:,.1f}", "p99 ms": "{ttft_p99_ms:,.1f}", "turns/s": "{turns_per_s:,.1f}",
        "errors": "{errors}",
    }  # fmt: skip
    print_table("KV", report["rows"], policy | found)
    rows = [
        row | {"why": ", ".join(f"{reason} {share:.1%}" for reason, share in row["reasons"].items())}
        for row in report["rows"]
    ]
    decided = {"p50 us": "{decision_p50_us:,}", "p99 us": "{decision_p99_us:,}", "reasons": "{why}"}
    print_table("decisions", rows, policy | decided)
