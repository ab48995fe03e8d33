"""Measures the serving path: one level of concurrency after the other against a running stack.

Every level runs in a load generator process of its own (`load.py`), whose CPU time counts like that of the
services.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from benchmarks.lib.child import ChildObject
from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.lib.stack import RunningStack
from benchmarks.serving.load import LoadFigures
from benchmarks.serving.plan import ServingPlan, Transport

EXTRA_S = 40.0  # for the generator's start and late answers
LOAD = "load"
_BY: dict[Transport, str] = {"http": "HTTP", "grpc": "gRPC", "realtime": "WebSockets"}


def measure(plan: ServingPlan, stack: RunningStack, progress: Progress) -> dict[str, Any]:
    """Measure all levels, in their order.

    Returns:
        A row for each level and transport, and CPU milliseconds a request by service at the highest level.

    Raises:
        BenchError: A level has no right answer at all, or a process ended.
    """
    if "grpc" in plan.transports and not stack.grpc:
        raise BenchError("the stack has no gRPC: name its address with `--grpc HOST:PORT`")
    rows = []
    cpus: dict[Transport, dict[int, dict[str, float]]] = {transport: {} for transport in plan.transports}
    for concurrency in plan.concurrency:
        for transport in plan.transports:
            row, cpus[transport][concurrency] = _measure_level(plan, stack, concurrency, transport, progress)
            rows.append(row)
    names: dict[Transport, str] = {
        "http": "cpu_ms_per_request",
        "grpc": "cpu_ms_per_grpc_request",
        "realtime": "cpu_ms_per_realtime_request",
    }
    return {"rows": rows} | {names[transport]: found[max(found)] for transport, found in cpus.items()}


def measure_in_turns(
    plan: ServingPlan, stacks: Mapping[str, RunningStack], progress: Progress
) -> dict[str, Any]:
    """Measure servers by HTTP in turns at each level, `plan.rounds` times; figures are medians of the rounds.

    Args:
        stacks: By the names of the servers, which all run meanwhile.

    Returns:
        A row for each level and server, and CPU milliseconds a request of the last round by server.

    Raises:
        BenchError: See `measure`.
    """
    rows, cpu = [], dict[str, dict[str, float]]()
    for concurrency in plan.concurrency:
        level = replace(plan, concurrency=(concurrency,))
        rounds: dict[str, list[dict[str, Any]]] = {server: [] for server in stacks}
        for _ in range(plan.rounds):
            for server, stack in stacks.items():
                report = measure(level, stack, progress)
                rounds[server] += report["rows"]
                cpu[server] = report["cpu_ms_per_request"]
        rows += [{"server": server} | _median_row(found) for server, found in rounds.items()]
    return {"rows": rows, "cpu_ms_per_request": cpu}


def _median_row(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of a level's rows; errors are added up."""
    row = {name: round(median(one[name] for one in rounds), 3) for name in rounds[0] if name != "error_kinds"}
    return row | {"errors": sum(one["errors"] for one in rounds)}


def _measure_level(
    plan: ServingPlan, stack: RunningStack, concurrency: int, transport: Transport, progress: Progress
) -> tuple[dict[str, Any], dict[str, float]]:
    url = f"grpc://{stack.grpc}" if transport == "grpc" else stack.url
    if transport == "realtime":
        url = url.replace("http", "ws", 1)
    asked = {"url": url, "model": stack.model, "concurrency": concurrency}
    asked |= {"tokens": plan.tokens, "stream": plan.stream, "api_key": plan.api_key}
    named = (
        f"concurrency {concurrency}"
        if transport == "http"
        else f"concurrency {concurrency} by {_BY[transport]}"
    )
    progress(f"{named}: warm-up")
    with closing(ChildObject("benchmarks.serving.load:start_load", asked)) as child:
        child.receive(EXTRA_S)
        child.call("begin", plan.warmup, timeout_s=plan.warmup + EXTRA_S)
        child.send("measure", plan.duration)
        meter = CpuMeter(stack.pids)
        meter.start()
        progress(f"{named}: measuring")
        child.receive(plan.duration + EXTRA_S)
        used_s = meter.read()
        figures: LoadFigures = child.call("finish", timeout_s=EXTRA_S)
    if not figures.requests:
        kinds = ", ".join(figures.error_kinds) or "nothing came back"
        raise BenchError(f"no right answer at {named}: {kinds}")
    names = ["concurrency", "requests_per_s", "p50_ms", "p95_ms", "p99_ms", "errors"]
    names += ["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "events_per_answer"] if plan.stream else []
    names += ["error_kinds"] if figures.error_kinds else []
    values = asdict(figures)
    row = {
        name: round(values[name], 3) if isinstance(values[name], float) else values[name] for name in names
    }
    if len(plan.transports) > 1:
        row = {"transport": transport} | row
    cpu = {name: seconds / figures.requests * 1e3 for name, seconds in used_s.items()}
    # the generator counts for itself, without its start
    cpu[LOAD] = figures.cpu_us_per_request / 1e3
    return row, {name: round(value, 4) for name, value in cpu.items()}
