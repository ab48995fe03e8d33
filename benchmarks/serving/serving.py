"""Measures the serving path: one level of concurrency after the other against a running stack.

Every level runs in a load generator process of its own (`load.py`), whose CPU time counts like that of the
services.
"""

from contextlib import closing
from dataclasses import asdict
from typing import Any

from benchmarks.lib.child import ChildObject
from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.lib.stack import RunningStack
from benchmarks.plans import ServingPlan
from benchmarks.serving.load import LoadFigures

EXTRA_S = 40.0  # for the generator's start and late answers
LOAD = "load"


def measure(plan: ServingPlan, stack: RunningStack, progress: Progress) -> dict[str, Any]:
    """Measure all levels, in their order.

    Returns:
        A row for each level, and CPU milliseconds a request by service at the highest one.

    Raises:
        BenchError: A level has no right answer at all, or a process ended.
    """
    rows, cpus = [], {}
    for concurrency in plan.concurrency:
        row, cpus[concurrency] = _measure_level(plan, stack, concurrency, progress)
        rows.append(row)
    return {"rows": rows, "cpu_ms_per_request": cpus[max(cpus)]}


def _measure_level(
    plan: ServingPlan, stack: RunningStack, concurrency: int, progress: Progress
) -> tuple[dict[str, Any], dict[str, float]]:
    asked = {"url": stack.url, "model": stack.model, "concurrency": concurrency}
    asked |= {"tokens": plan.tokens, "stream": plan.stream}
    progress(f"concurrency {concurrency}: warm-up")
    with closing(ChildObject("benchmarks.serving.load:start_load", asked)) as child:
        child.receive(EXTRA_S)
        child.call("begin", plan.warmup, timeout_s=plan.warmup + EXTRA_S)
        child.send("measure", plan.duration)
        meter = CpuMeter(stack.pids)
        meter.start()
        progress(f"concurrency {concurrency}: measuring")
        child.receive(plan.duration + EXTRA_S)
        used_s = meter.read()
        figures: LoadFigures = child.call("finish", timeout_s=EXTRA_S)
    if not figures.requests:
        kinds = ", ".join(figures.error_kinds) or "nothing came back"
        raise BenchError(f"no right answer at concurrency {concurrency}: {kinds}")
    names = ["concurrency", "requests_per_s", "p50_ms", "p99_ms", "errors"]
    names += ["ttft_p50_ms"] if plan.stream else []
    names += ["error_kinds"] if figures.error_kinds else []
    told = asdict(figures)
    row = {name: round(told[name], 3) if isinstance(told[name], float) else told[name] for name in names}
    cpu = {name: seconds / figures.requests * 1e3 for name, seconds in used_s.items()}
    # the generator counts for itself, without its start
    cpu[LOAD] = figures.cpu_us_per_request / 1e3
    return row, {name: round(value, 4) for name, value in cpu.items()}
