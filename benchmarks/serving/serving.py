"""Measures the serving path: one level of concurrency after the other against a stack.

Every level runs in a load generator process of its own (`benchmarks/serving/load.py`), whose CPU time counts
like that of the services. How a stack comes up, and what is shown of the figures, is decided elsewhere.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.lib.cpu import CpuMeter
from shared.host.own_python import module_command, module_environment

Progress = Callable[[int, str], None]  # (concurrency, phase)
EXTRA_S = 40.0  # start of the generator, answers that are late
LOAD = "load"


class BenchFailed(Exception):
    """There is no figure; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send, and for how long at each level."""

    url: str
    model: str
    concurrency: Sequence[int]
    duration_s: float = 5.0
    warmup_s: float = 1.0
    tokens: int = 16
    stream: bool = False
    pids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Level:
    """One measured level: the generator's figures, and CPU milliseconds a request by service."""

    figures: dict[str, Any]
    cpu_ms_per_request: dict[str, float]

    def row(self, stream: bool) -> dict[str, Any]:
        """The figures that are reported."""
        names = ["concurrency", "requests_per_s", "p50_ms", "p99_ms", "errors"]
        names += ["ttft_p50_ms"] if stream else []
        row = {name: self.figures[name] for name in names}
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
        kinds = self.figures["error_kinds"]
        return {**rounded, "error_kinds": kinds} if kinds else rounded


async def measure(plan: Plan, progress: Progress) -> list[Level]:
    """All levels of a plan, in its order. Raises `BenchFailed` when one has no right answer at all."""
    return [await _level(plan, concurrency, progress) for concurrency in plan.concurrency]


async def _level(plan: Plan, concurrency: int, progress: Progress) -> Level:
    options = {
        "--url": plan.url,
        "--model": plan.model,
        "--concurrency": concurrency,
        "--tokens": plan.tokens,
        "--warmup": plan.warmup_s,
        "--duration": plan.duration_s,
    }
    command = module_command("benchmarks.serving.load")
    command += [str(part) for option in options.items() for part in option]
    command += ["--stream"] if plan.stream else []
    process = await asyncio.create_subprocess_exec(
        *command,
        env=module_environment(os.environ),
        stdout=asyncio.subprocess.PIPE,
        process_group=0,
    )
    progress(concurrency, "warm-up")
    try:
        async with asyncio.timeout(plan.warmup_s + plan.duration_s + EXTRA_S):
            return await _follow(process, plan, concurrency, progress)
    except TimeoutError:
        raise BenchFailed(f"the load generator did not end at concurrency {concurrency}") from None
    except LookupError as error:
        raise BenchFailed(f"{error}, at concurrency {concurrency}") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _follow(
    process: asyncio.subprocess.Process, plan: Plan, concurrency: int, progress: Progress
) -> Level:
    meter = CpuMeter(plan.pids)
    used: dict[str, float] = {}
    assert process.stdout is not None
    async for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "measuring":
            meter.start()
            progress(concurrency, "measuring")
        elif event["event"] == "measured":
            used = meter.read()
        else:
            return _level_of(event, used)
    raise BenchFailed(f"the load generator ended with exit code {await process.wait()} and no figures")


def _level_of(figures: dict[str, Any], used_s: dict[str, float]) -> Level:
    count = figures["requests"]
    if not count:
        kinds = ", ".join(figures["error_kinds"]) or "nothing came back"
        raise BenchFailed(f"no right answer at concurrency {figures['concurrency']}: {kinds}")
    services = {name: seconds / count * 1e3 for name, seconds in used_s.items()}
    # the generator counts for itself: it may be gone by now
    cpu = {**services, LOAD: figures["cpu_us_per_request"] / 1e3}
    return Level(figures, {name: round(value, 4) for name, value in cpu.items()})
