"""`ryz bench serving`: options and tables of the serving path; brings a stack unless one is named."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lib.machine import SERVING_PACKAGES
from benchmarks.lib.stack import RunningStack
from benchmarks.serving.plan import ServingPlan
from cli.bench.own_stack import own_stack
from cli.bench.report import AsJson, Report, counting_bar, print_line, print_table, reporting
from cli.bench.serving.dynamo_stack import dynamo_stack, require_dynamo
from cli.command_options import with_options
from cli.console import err, fail
from cli.models.resolve import resolve_model
from cli.stack.host.ports import pick_ports


@with_options
def serving(plan: ServingPlan, *, as_json: AsJson = False) -> None:
    """Requests a second, latencies and CPU of the whole path, with an engine that computes nothing.

    Starts broker, store, kvstate, router, worker groups and gateway, loads them with chat completions that
    belong to no session, checks every answer, and takes all down again. What is not complete is an error.
    With `--transports http,grpc,realtime` each level is measured by HTTP, by gRPC, and over WebSockets with
    four requests on each, on one stack. With `--peer dynamo` the same client then loads Dynamo with its mock
    engine, over NATS, with as many workers; the rows say which server answered.
    """
    from benchmarks.serving.serving import measure  # noqa: PLC0415 (keeps `ryz bench --help` quick)

    if plan.peer:
        require_dynamo(plan.peer_envs, Path(plan.model) if plan.model else None)
        if plan.url or tuple(plan.transports) != ("http",):
            fail("--peer measures an own stack by HTTP: leave out --url and --transports.", exit_code=2)
    with (
        reporting(_show, as_json=as_json, packages=SERVING_PACKAGES) as report,
        ExitStack() as cleanup,
        ExitStack() as cleanup_ours,  # ours ends before a peer begins
    ):
        if plan.url:
            stack = RunningStack(plan.url.rstrip("/"), plan.model or "demo", grpc=plan.grpc)
        else:
            err.print("starting a stack", style="dim")
            command = {"--engine": "null", "--groups": plan.groups}
            command |= {"--model": resolve_model(plan.model)} if plan.model else {}
            command |= {"--grpc-port": pick_ports(1)[0]} if "grpc" in plan.transports else {}
            stack = cleanup_ours.enter_context(own_stack(command))
        steps = 2 * len(plan.concurrency) * len(plan.transports)
        progress = cleanup.enter_context(counting_bar(2 * steps if plan.peer else steps))
        report.update(measure(plan, stack, progress))
        if plan.peer:
            cleanup_ours.close()
            with dynamo_stack(plan.peer_envs, Path(plan.model), plan.groups) as theirs:
                add_peer(report, measure(plan, theirs, progress), plan.peer)


def add_peer(report: Report, theirs: dict[str, Any], peer: str) -> None:
    """Add the rows and the CPU times of a peer."""
    ours = [{"server": "ryzanstein"} | row for row in report["rows"]]
    report["rows"] = ours + [{"server": peer} | row for row in theirs["rows"]]
    report["peer_cpu_ms_per_request"] = theirs["cpu_ms_per_request"]


def _show(report: Report) -> None:
    names = list(report["rows"][0])
    rows = [{name: row.get(name) for name in names} for row in report["rows"]]
    print_table("serving path", rows, {name: f"{{{name}}}" for name in names})
    for figure, title in (
        ("cpu_ms_per_request", ""),
        ("cpu_ms_per_grpc_request", ", by gRPC"),
        ("cpu_ms_per_realtime_request", ", by WebSockets"),
        ("peer_cpu_ms_per_request", ", the peer"),
    ):
        used = report.get(figure)
        if used:
            cpu = [{"service": name, "ms": ms} for name, ms in {**used, "all": sum(used.values())}.items()]
            columns = {"service": "{service}", "CPU ms per request": "{ms:.3f}"}
            print_table(f"at the highest concurrency{title}", cpu, columns)
    facts = report["machine"]
    print_line(
        f"{facts['cpu']}, {facts['usable_cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}, "
        f"Python {facts['python']}, commit {report['commit']}"
    )
