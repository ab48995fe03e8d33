"""Measures the whole engine: the leader's scheduler here, the ranks in their processes, peers beside them.

Within each repeat the peers take turns with our engine, so that other load on the machine disturbs all alike.
One batch is run by `driver.py`; rates and sums are in `engine/row.py`.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import roofline
from benchmarks.engine.bandwidth import measure_bandwidth
from benchmarks.engine.driver import Driver, Run, make_prompts, rank_options, start_driver
from benchmarks.engine.http import HttpDriver, http_driver
from benchmarks.engine.http_row import StreamRun, http_figures
from benchmarks.engine.independent import measure_independent
from benchmarks.engine.quality import add_quality, quality_steps
from benchmarks.engine.row import mean_step_s, peer_rows, rates, step_figures
from benchmarks.engine_plans import EnginePlan, model_name
from benchmarks.lib.measuring import Progress
from benchmarks.lib.stack import StackStarter
from benchmarks.peers.base import Timing
from benchmarks.peers.contest import PeerProcesses, PeerType, peer_types
from benchmarks.peers.start import PeerSizes
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.run_config import Precision

_RUN_S = 900.0
PAUSE_S = 0.3  # between turns: threads of the engine before may still spin


async def measure(plan: EnginePlan, start_stack: StackStarter, progress: Progress) -> dict[str, Any]:
    """Measure all rows of a plan, and what each start of the engine took.

    Raises:
        EngineFailed: An engine broke.
        BenchError: A peer or the stack broke, or the figures would mean nothing.
    """
    config = read_config(plan.model)
    bench = _EngineBench(plan, config, start_stack, progress)
    independent = []
    for precision in plan.precision:
        await bench.measure_precision(precision)
        for world in plan.tp:
            if plan.independent and world > 1:
                independent.append(await measure_independent(plan, config, precision, world, progress))
    first = bench.engines[0]
    if plan.quality:
        add_quality(plan, bench.rows, progress)
    report = {"rows": bench.rows, "load_s": first["load_s"], "peak_rss_mb": first["peak_rss_mb"]}
    return {**report, "engines": bench.engines, **({"independent": independent} if independent else {})}


def num_steps(plan: EnginePlan) -> int:
    """Return how often `measure` reports progress, at most."""
    types = sum(len(peer_types(plan.peers, (precision,))) for precision in plan.precision)
    return plan.num_steps(types) + (quality_steps(plan, types) if plan.quality else 0)


@dataclass(slots=True)
class _Contenders:
    """The engine and its peers, which take turns.

    Attributes:
        http: The same through a stack; None if the plan asks for none.
        peers: Those of them that run.
    """

    own: Driver
    http: HttpDriver | None
    types: list[PeerType]
    peers: PeerProcesses


class _EngineBench:
    """Gathers the rows, and a summary of each start of the engine."""

    def __init__(
        self, plan: EnginePlan, config: ModelConfig, start_stack: StackStarter, progress: Progress
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.engines: list[dict[str, Any]] = []
        self._plan = plan
        self._config = config
        self._start_stack = start_stack
        self._progress = progress

    async def measure_precision(self, precision: Precision) -> None:
        """Measure all rows of one precision; the peers are loaded once for them."""
        plan = self._plan
        types = peer_types(plan.peers, (precision,))
        sizes = PeerSizes(
            max_sequences=max(plan.batches),
            max_length=plan.prompt + plan.tokens,
            threads=max(world * plan.threads_of(world) for world in plan.tp),
            device=plan.device,
        )
        with PeerProcesses(plan.model, plan.peer_envs) as peers:
            await peers.start(types, sizes, self._progress)
            for world in plan.tp:
                await self._measure_engine(precision, world, types, peers)

    async def _measure_engine(
        self, precision: Precision, world: int, types: list[PeerType], peers: PeerProcesses
    ) -> None:
        """Start the engine once, and measure a row for each batch size."""
        plan = self._plan
        threads = plan.threads_of(world)
        options = rank_options(plan, precision, world, threads)
        what = f"{precision}, tp {world}"
        self._progress(f"{what}: memory bandwidth")
        bandwidth = await measure_bandwidth(world, threads, device=plan.device)
        async with AsyncExitStack() as stack:
            self._progress(f"{what}: loading")
            began = time.monotonic()
            own, info = await start_driver(stack, options, max(plan.batches))
            start_s = time.monotonic() - began
            http = None
            if plan.http:
                self._progress(f"{what}: starting a stack")
                http = stack.enter_context(http_driver(options, self._start_stack))
            contenders = _Contenders(own, http, types, peers)
            names = {"model": model_name(plan.model), "precision": precision, "tp": world, "threads": threads}
            rows = []
            for batch in plan.batches:
                row, step_s = await self._measure_batch(contenders, batch, threads * world, what)
                rows.append(({**names, **row}, step_s))
            self._progress(f"{what}: memory bandwidth again")
            # other load can only make it look smaller, and our share of it larger
            bandwidth = max(bandwidth, await measure_bandwidth(world, threads, device=plan.device))
            for row, step_s in rows:
                context = plan.prompt + plan.tokens / 2
                needed = roofline.decode_bytes(self._config, precision, row["batch"], context, info.kv_format)
                row["bandwidth_share"] = round(needed / step_s / bandwidth, 4)
                row["bandwidth_gb_per_s"] = round(bandwidth / 1e9, 2)
                self.rows.append(row)
            self.engines.append({**names, "start_s": round(start_s, 3), **_engine_facts(info)})

    async def _measure_batch(
        self, contenders: _Contenders, batch: int, threads: int, what: str
    ) -> tuple[dict[str, Any], float]:
        """Run a warm-up and the repeats, each with the same prompts for all in turn.

        Returns:
            The row without its bandwidth, and the seconds of a decode step.
        """
        plan = self._plan
        runs: list[Run] = []
        streamed: list[StreamRun] = []
        running = contenders.peers.running
        timings: dict[str, list[Timing]] = {name: [] for name in running}
        for repeat in range(plan.repeats + 1):
            phase = f"{what}, batch {batch}: {f'repeat {repeat}' if repeat else 'warm-up'}"
            prompts = make_prompts(batch, plan.prompt, self._config.vocab_size, repeat)
            self._progress(phase)
            await asyncio.sleep(PAUSE_S if running else 0)
            runs.append(await contenders.own.run_batch(prompts, plan.tokens))
            if contenders.http is not None:
                self._progress(f"{phase}, through HTTP")
                streamed.append(await contenders.http.run_batch(prompts, plan.tokens))
            for name, child in running.items():
                self._progress(f"{phase}, {name}")
                await asyncio.sleep(PAUSE_S)
                child.send("run_batch", prompts, plan.tokens, threads)
                timings[name].append(await asyncio.to_thread(child.receive, _RUN_S))
        row: dict[str, Any] = {"batch": batch, "prompt": plan.prompt, "tokens": plan.tokens}
        row |= {**rates(runs[1:], plan.prompt), **step_figures(runs[1:])}
        measured = {name: timed[1:] for name, timed in timings.items()}
        row["peers"] = peer_rows(row, contenders.types, measured, contenders.peers.refusals)
        if streamed:
            row["http"] = http_figures(streamed[1:], row["decode_tokens_per_s"])
        return row, mean_step_s(runs[1:])


def _engine_facts(info: EngineInfo) -> dict[str, Any]:
    """Return what the ranks took to load, and the most memory that each needed until now.

    `load_s` counts from a rank's own beginning; `start_s` beside it has all that the leader waits for.
    """
    kernels = sorted({rank.kernels for rank in info.ranks if rank.kernels})
    return {
        "load_s": round(max(rank.load_s for rank in info.ranks), 3),
        "loaded_mb": [round(rank.loaded_bytes / 2**20, 1) for rank in info.ranks],
        "peak_rss_mb": [_peak_rss_mb(rank.pid, rank.peak_rss_bytes) for rank in info.ranks],
        "kernels": ", ".join(kernels),
        "kv_format": info.kv_format,
    }


def _peak_rss_mb(pid: int, at_start: int) -> float:
    """Return the largest resident memory of a process so far; `at_start` where /proc has no larger one."""
    peak = at_start
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                peak = max(peak, int(line.split()[1]) * 1024)
    except OSError:
        pass
    return round(peak / 2**20, 1)
