"""`ryz bench tenants`: options, stack and table of tenants of which one floods a group."""

import asyncio

from benchmarks.lib.machine import SERVING_PACKAGES
from benchmarks.stack_plans import TenantsPlan
from benchmarks.tenants.fair_bound import WINDOW_S
from cli.bench.inputs import with_model
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.command_options import with_options
from cli.console import err
from cli.stack.model_dir import demo_model

HELD = {
    True: "holds",
    False: "DOES NOT HOLD",
    None: "says nothing, since one of them did not always wait for more",
}


@with_options
def tenants(plan: TenantsPlan, *, as_json: AsJson = False) -> None:
    """Time to first token of two tenants, alone and while a third floods the group.

    Starts a stack of one group and takes it down again.
    """
    from benchmarks.tenants.tenant_load import PHASES, keys, measure  # noqa: PLC0415 (quick `--help`)

    model = with_model(plan).model or demo_model()
    with reporting("tenants", _show, as_json=as_json, packages=SERVING_PACKAGES) as report:
        err.print("starting a stack", style="dim")
        options = {"--model": model, "--groups": 1, "--log-level": "warning"}
        with (
            counting_bar(plan.rounds * len(PHASES)) as progress,
            own_stack(options, {"RYZ_API_KEYS": keys()}) as stack,
        ):
            report.update(asyncio.run(measure(plan, stack.url, stack.model, progress)))
        report.update(model=model.name, streams=plan.streams)


def _show(report: Report) -> None:
    names = list(report["rows"][0])
    print_table("first tokens of two tenants", report["rows"], {name: f"{{{name}}}" for name in names})
    print_line(
        f"p50 and p99 with the flood / without: {report['p50_to_calm']}, {report['p99_to_calm']}; in the "
        f"order of arrival p99 {report['p99_arrival_to_calm']}; prefix hits to those in that order "
        f"{report['hits_to_arrival']}"
    )
    print_line(
        f"two that flood: {report['rivals']} tokens; difference over 10 s at most "
        f"{report['window_gap_share_max']} of both"
    )
    for one in report["bounds"]:
        print_line(
            f"in any {WINDOW_S:g} s they differ by at most {one['gap_tokens']:,.0f} weighted tokens; the "
            f"algorithm's bound is {one['bound_tokens']:,.0f} (quantum {one['quantum']:g}, a decoded token "
            f"counts {one['decode_tokens']:g}): it {HELD[one['holds']]}"
        )
    facts = report["machine"]
    print_line(f"{facts['cpu']}, {facts['usable_cores']} cores, commit {report['commit']}")
