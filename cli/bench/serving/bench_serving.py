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

OURS = "ryzanstein"


@with_options
def serving(plan: ServingPlan, *, as_json: AsJson = False) -> None:
    """Requests a second, latencies and CPU of the whole path, with an engine that computes nothing.

    Starts broker, store, kvstate, router, worker groups and gateway, loads them with chat completions that
    belong to no session, checks every answer, and takes all down again. What is not complete is an error.
    With `--transports http,grpc,realtime` each level is measured by HTTP, by gRPC, and over WebSockets with
    four requests on each, on one stack. With `--peer dynamo` the same client loads Dynamo with its mock
    engine, over NATS, with as many workers, in turns with ours at each level; rows say which server answered.
    """
    # keeps `ryz bench --help` quick
    from benchmarks.serving.serving import measure, measure_in_turns  # noqa: PLC0415

    if plan.peer:
        require_dynamo(plan.peer_envs, Path(plan.model) if plan.model else None)
        if plan.url or tuple(plan.transports) != ("http",):
            fail("--peer measures an own stack by HTTP: leave out --url and --transports.", exit_code=2)
    with (
        reporting("serving", _show, as_json=as_json, packages=SERVING_PACKAGES) as report,
        ExitStack() as cleanup,
    ):
        if plan.url:
            stack = RunningStack(plan.url.rstrip("/"), plan.model or "demo", grpc=plan.grpc)
        else:
            err.print("starting a stack", style="dim")
            command = {"--engine": "null", "--groups": plan.groups}
            command |= {"--model": resolve_model(plan.model)} if plan.model else {}
            command |= {"--grpc-port": pick_ports(1)[0]} if "grpc" in plan.transports else {}
            stack = cleanup.enter_context(own_stack(command))
        steps = 2 * len(plan.concurrency) * len(plan.transports)
        if plan.peer:
            peer = cleanup.enter_context(dynamo_stack(plan.peer_envs, Path(plan.model), plan.groups))
            progress = cleanup.enter_context(counting_bar(2 * steps * plan.rounds))
            report.update(in_turns(measure_in_turns(plan, {OURS: stack, plan.peer: peer}, progress)))
        else:
            report.update(measure(plan, stack, cleanup.enter_context(counting_bar(steps))))


def in_turns(found: dict[str, Any]) -> Report:
    """Return a report with the CPU times of both servers under the names that other reports have."""
    ours = found["cpu_ms_per_request"].pop(OURS)
    (theirs,) = found["cpu_ms_per_request"].values()
    return found | {"cpu_ms_per_request": ours, "peer_cpu_ms_per_request": theirs}


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
