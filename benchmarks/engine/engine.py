"""Measures the whole engine: the leader's scheduler here, the ranks in their processes, peers beside them.

Peers take turns with ours within each repeat, so that a noisy neighbour hits all alike. One run is in
`driver.py`, the sums in `engine_row.py`, the options and the table in `cli/bench/bench_engine.py`.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import roofline
from benchmarks.engine.bandwidth import measure_bandwidth
from benchmarks.engine.driver import DriveError, Driver, Run, kv_tokens
from benchmarks.engine.engine_http import HttpDriver, http_driver
from benchmarks.engine.engine_row import mean_step_s, peer_rates, rates, step_figures
from benchmarks.engine.http_row import StreamRun, WindowError, http_figures
from benchmarks.lib.child import Child, ChildError
from benchmarks.lib.streams import StreamError
from benchmarks.peers import start_peer
from benchmarks.peers.base import Timing
from services.worker.engine.checkpoint.model_config import ModelConfig, read_config
from services.worker.orchestrator.rank_engine import RankEngine, RankEngineOptions
from services.worker.rank_protocol.plan import EngineFailed, EngineInfo
from services.worker.rank_protocol.rank_messages import Kernels, KVDtype, Quantize

Progress = Callable[[str], None]
_LOAD_S = 900.0
_RUN_S = 900.0


class BenchFailed(Exception):
    """There is no figure; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure; every combination of quantize, tp and batches is a row.

    threads: of each rank; 0: the usable cores divided by the ranks.
    prompt, tokens: length of each prompt, and tokens generated for it.
    independent: measure two or more ranks that work alone beside each tp above 1.
    http: measure the same through a stack of its own, which takes the model's memory a second time.
    """

    model: Path
    quantize: Sequence[Quantize] = ("none",)
    tp: Sequence[int] = (1,)
    threads: int = 0
    batches: Sequence[int] = (1, 4, 8, 16)
    prompt: int = 128
    tokens: int = 48
    repeats: int = 3
    kernels: Kernels = "auto"
    kv_dtype: KVDtype = "auto"
    peers: Sequence[str] = ()
    independent: bool = False
    http: bool = False

    def threads_of(self, world: int) -> int:
        """Threads of each of that many ranks."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // world)

    def options(self, quantize: Quantize, world: int, threads: int) -> RankEngineOptions:
        """How the engine is started."""
        return RankEngineOptions(
            model=self.model,
            tensor_parallel=world,
            threads=threads,
            quantize=quantize,
            kernels=self.kernels,
            kv_dtype=self.kv_dtype,
            kv_cache_tokens=kv_tokens(max(8, *self.batches), self.prompt + self.tokens),
            start_timeout_s=_LOAD_S,
            step_timeout_s=300.0,
        )

    def num_steps(self) -> int:
        """How often `measure` reports progress."""
        runs = (self.repeats + 1) * len(self.batches) * (1 + len(self.peers) + self.http)
        split = [world for world in self.tp if world > 1] if self.independent else []
        each = (
            len(self.tp) * (3 + self.http + runs)
            + len(self.peers)
            + sum(2 + 3 * (self.repeats + 1) for _ in split)
        )
        return len(self.quantize) * each


@dataclass(slots=True)
class Peers:
    """The peers of one precision: those that run, and why the others do not."""

    running: dict[str, Child]
    notes: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Turns:
    """Who of ours takes turns."""

    own: Driver
    http: HttpDriver | None


def precision_of(quantize: Quantize) -> str:
    """What the weights are computed from."""
    return "int8" if quantize == "int8" else "fp32"


def make_prompts(batch: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random prompts; different seeds share no prefix, so nothing comes from the prefix cache."""
    rng = np.random.default_rng([seed, batch, length])
    return [[int(token) for token in rng.integers(0, vocab_size, length)] for _ in range(batch)]


async def measure(plan: Plan, progress: Progress) -> dict[str, Any]:
    """All rows of a plan, and what each start of the engine took.

    Raises:
        BenchFailed: an engine or a peer broke, or the figures would mean nothing.
    """
    from benchmarks.engine.independent import measure_independent  # noqa: PLC0415 (it imports this file)

    config = read_config(plan.model)
    bench = _Bench(plan, config, progress)
    independent: list[dict[str, Any]] = []
    try:
        for quantize in plan.quantize:
            await bench.measure(quantize)
            for world in plan.tp:
                if plan.independent and world > 1:
                    independent.append(await measure_independent(plan, config, quantize, world, progress))
    except (EngineFailed, ChildError, DriveError, StreamError, WindowError, LookupError) as error:
        raise BenchFailed(str(error)) from error
    first = bench.engines[0]
    report = {"rows": bench.rows, "load_s": first["load_s"], "peak_rss_mb": first["peak_rss_mb"]}
    return {**report, "engines": bench.engines, **({"independent": independent} if independent else {})}


async def started(stack: AsyncExitStack, options: RankEngineOptions) -> tuple[RankEngine, EngineInfo]:
    """An engine that is stopped with the stack. Raises `EngineFailed`."""
    engine = RankEngine(options)
    stack.push_async_callback(engine.stop)
    return engine, await engine.start()


class _Bench:
    """Gathers the rows, and a summary of each start of the engine."""

    def __init__(self, plan: Plan, config: ModelConfig, progress: Progress) -> None:
        self.rows: list[dict[str, Any]] = []
        self.engines: list[dict[str, Any]] = []
        self._plan = plan
        self._config = config
        self._progress = progress

    async def measure(self, quantize: Quantize) -> None:
        """All rows of one precision; the peers are loaded once for them."""
        async with AsyncExitStack() as stack:
            peers = await self._start_peers(stack, quantize)
            for world in self._plan.tp:
                await self._measure_engine(quantize, world, peers)

    async def _start_peers(self, stack: AsyncExitStack, quantize: Quantize) -> Peers:
        plan, peers, precision = self._plan, Peers({}, {}), precision_of(quantize)
        for name in plan.peers:
            self._progress(f"{name}: loading, {precision}")
            child = start_peer(name, plan.model, precision, max(plan.batches), plan.prompt + plan.tokens)
            stack.callback(child.close)
            try:
                await asyncio.to_thread(child.receive, _LOAD_S)
            except ChildError as error:
                peers.notes[name] = str(error)
            else:
                peers.running[name] = child
        return peers

    async def _measure_engine(self, quantize: Quantize, world: int, peers: Peers) -> None:
        """One start of the engine, and a row for each batch size."""
        plan, precision = self._plan, precision_of(quantize)
        threads = plan.threads_of(world)
        what = f"{precision}, tp {world}"
        self._progress(f"{what}: memory bandwidth")
        bandwidth = await measure_bandwidth(world, threads)
        async with AsyncExitStack() as stack:
            self._progress(f"{what}: loading")
            rows = []
            began = time.monotonic()
            engine, info = await started(stack, plan.options(quantize, world, threads))
            start_s = time.monotonic() - began
            own = Driver(engine, info, max(plan.batches))
            turns = _Turns(own, self._http(stack, plan.options(quantize, world, threads), what))
            names = {
                "model": plan.model.resolve().name,
                "precision": precision,
                "tp": world,
                "threads": threads,
            }
            for batch in plan.batches:
                runs, timings, streamed = await self._repeats(turns, batch, threads * world, peers, what)
                sizes = {"batch": batch, "prompt": plan.prompt, "tokens": plan.tokens}
                row: dict[str, Any] = {**names, **sizes, **rates(runs, plan.prompt), **step_figures(runs)}
                row["peers"] = _peer_rows(row, timings, peers, plan.prompt)
                if streamed:
                    row["http"] = http_figures(streamed, row["decode_tokens_per_s"])
                rows.append((row, mean_step_s(runs)))
            self._progress(f"{what}: memory bandwidth again")
            # a neighbour can only make it look smaller, and our share of it larger
            bandwidth = max(bandwidth, await measure_bandwidth(world, threads))
            for row, step_s in rows:
                context = plan.prompt + plan.tokens / 2
                needed = roofline.decode_bytes(self._config, precision, row["batch"], context, info.kv_format)
                row["bandwidth_share"] = round(needed / step_s / bandwidth, 4)
                row["bandwidth_gb_per_s"] = round(bandwidth / 1e9, 2)
                self.rows.append(row)
            self.engines.append({**names, "start_s": round(start_s, 3), **_engine_facts(info)})

    def _http(self, stack: AsyncExitStack, options: RankEngineOptions, what: str) -> HttpDriver | None:
        if not self._plan.http:
            return None
        self._progress(f"{what}: starting a stack")
        return stack.enter_context(http_driver(options))

    async def _repeats(
        self, turns: _Turns, batch: int, threads: int, peers: Peers, what: str
    ) -> tuple[list[Run], dict[str, list[Timing]], list[StreamRun]]:
        """The repeats after a warm-up; ours and each peer's in turns, all with the same prompts."""
        plan = self._plan
        runs: list[Run] = []
        streamed: list[StreamRun] = []
        timings: dict[str, list[Timing]] = {name: [] for name in peers.running}
        for repeat in range(plan.repeats + 1):
            phase = f"{what}, batch {batch}: {f'repeat {repeat}' if repeat else 'warm-up'}"
            prompts = make_prompts(batch, plan.prompt, self._config.vocab_size, repeat)
            self._progress(phase)
            runs.append(await turns.own.run(prompts, plan.tokens))
            if turns.http is not None:
                self._progress(f"{phase}, through HTTP")
                streamed.append(await turns.http.run(prompts, plan.tokens))
            for name, child in peers.running.items():
                self._progress(f"{phase}, {name}")
                child.send("run", prompts, plan.tokens, threads)
                timings[name].append(await asyncio.to_thread(child.receive, _RUN_S))
        return runs[1:], {name: measured[1:] for name, measured in timings.items()}, streamed[1:]


def _engine_facts(info: EngineInfo) -> dict[str, Any]:
    """What the ranks took to load, and the memory that each needed until now.

    load_s counts from a rank's own beginning; `start_s` beside it has all that the leader waits for.
    """
    kernels = sorted({rank.kernels for rank in info.ranks if rank.kernels})
    return {
        "load_s": round(max(rank.load_s for rank in info.ranks), 3),
        "loaded_mb": [round(rank.loaded_bytes / 2**20, 1) for rank in info.ranks],
        "peak_rss_mb": [_peak_rss_mb(rank.pid, rank.peak_rss_bytes) for rank in info.ranks],
        "kernels": ", ".join(kernels),
        "kv_format": info.kv_format,
    }


def _peer_rows(
    row: dict[str, Any], timings: dict[str, list[Timing]], peers: Peers, prompt: int
) -> dict[str, dict[str, Any]]:
    """Each peer's rates, and how many times faster we are; why there are none for the others."""
    found: dict[str, dict[str, Any]] = {}
    for name, measured in timings.items():
        theirs = peer_rates(measured, prompt)
        ours = {key: round(row[key] / theirs[key], 2) for key in theirs}
        found[name] = {
            **theirs,
            "prefill_speedup": ours["prefill_tokens_per_s"],
            "decode_speedup": ours["decode_tokens_per_s"],
        }
    for name, note in peers.notes.items():
        found[name] = {"prefill_tokens_per_s": None, "decode_tokens_per_s": None, "note": note}
    return found


def _peak_rss_mb(pid: int, at_start: int) -> float:
    """The largest resident memory of a process so far; what it told at its start where /proc has no more."""
    peak = at_start
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                peak = max(peak, int(line.split()[1]) * 1024)
    except OSError:
        pass
    return round(peak / 2**20, 1)
