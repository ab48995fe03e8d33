"""Measures the serving path: one level of concurrency after the other against a running stack.

Every level runs in a load generator process of its own (`load.py`), whose CPU time counts like that of the
services.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.measuring import BenchError
from benchmarks.lib.stack import RunningStack
from benchmarks.serving.serving_plan import ServingPlan
from shared.host.own_python import module_command, module_environment

LevelProgress = Callable[[int, str], None]  # (concurrency, phase)
EXTRA_S = 40.0  # for the generator's start and late answers
LOAD = "load"


async def measure(plan: ServingPlan, stack: RunningStack, progress: LevelProgress) -> dict[str, Any]:
    """Measure all levels, in their order.

    Returns:
        A row for each level, and CPU milliseconds a request by service at the highest one.

    Raises:
        BenchError: A level has no right answer at all, or a process ended.
    """
    rows, cpus = [], {}
    for concurrency in plan.concurrency:
        row, cpus[concurrency] = await _measure_level(plan, stack, concurrency, progress)
        rows.append(row)
    return {"rows": rows, "cpu_ms_per_request": cpus[max(cpus)]}


async def _measure_level(
    plan: ServingPlan, stack: RunningStack, concurrency: int, progress: LevelProgress
) -> tuple[dict[str, Any], dict[str, float]]:
    asked = {"url": stack.url, "model": stack.model, "concurrency": concurrency}
    asked |= {name: getattr(plan, name) for name in ("tokens", "warmup", "duration", "stream")}
    process = await asyncio.create_subprocess_exec(
        *module_command("benchmarks.serving.load"),
        json.dumps(asked),
        env=module_environment(os.environ),
        stdout=asyncio.subprocess.PIPE,
        process_group=0,
    )
    progress(concurrency, "warm-up")
    meter, used_s = CpuMeter(stack.pids), dict[str, float]()
    try:
        async with asyncio.timeout(plan.warmup + plan.duration + EXTRA_S):
            assert process.stdout is not None
            async for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "measuring":
                    meter.start()
                    progress(concurrency, "measuring")
                elif event["event"] == "measured":
                    used_s = meter.read()
                else:
                    return _row(event, plan.stream), _cpu_ms(event, used_s)
        raise BenchError(f"the load generator ended with exit code {await process.wait()} and no figures")
    except TimeoutError:
        raise BenchError(f"the load generator did not end at concurrency {concurrency}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _row(figures: dict[str, Any], stream: bool) -> dict[str, Any]:
    if not figures["requests"]:
        kinds = ", ".join(figures["error_kinds"]) or "nothing came back"
        raise BenchError(f"no right answer at concurrency {figures['concurrency']}: {kinds}")
    names = ["concurrency", "requests_per_s", "p50_ms", "p99_ms", "errors"]
    names += ["ttft_p50_ms"] if stream else []
    names += ["error_kinds"] if figures["error_kinds"] else []
    found = {name: figures[name] for name in names}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def _cpu_ms(figures: dict[str, Any], used_s: dict[str, float]) -> dict[str, float]:
    """Return CPU milliseconds a request; the generator, which may have ended by now, counts for itself."""
    services = {name: seconds / figures["requests"] * 1e3 for name, seconds in used_s.items()}
    cpu = {**services, LOAD: figures["cpu_us_per_request"] / 1e3}
    return {name: round(value, 4) for name, value in cpu.items()}
