"""Measures what writing KV blocks behind costs decoding: the same batches with it and without, in turns.

Ranks and a real store take part, as in a stack. The KV state service does not: its share is too small to see.
"""

import asyncio
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engine.driver import Driver, kv_tokens
from benchmarks.lib.measuring import Progress
from benchmarks.stack_plans import OverflowPlan
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.kv_messages import KVStoreConfig, StoreResult
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.settings import WorkerSettings
from shared import kv_hash


async def measure(
    plan: OverflowPlan,
    model: Path,
    store_url: str,
    progress: Progress,
    *,
    host_dir: str = "",
    prompt: int = 128,
    tokens: int = 192,
) -> dict[str, Any]:
    """Return tokens a second with and without writing, medians, and the share that writing costs.

    Args:
        store_url: A Redis for the blocks.
        progress: Called once for each of `plan.repeats`, and once for the warm-up.
        host_dir: Directory of the host tier; empty: there is none.
        prompt: Tokens of each prompt.
        tokens: Tokens generated for each.

    Raises:
        EngineFailed: The engine broke.
        BenchError: The batch was never decoded all together.
    """
    batch = plan.write_batch
    run_config = EngineRunConfig(
        model=str(model),
        tensor_parallel=plan.tensor_parallel,
        precision=plan.precision,
        kv_cache_tokens=kv_tokens(batch, prompt + tokens),
    )
    host_bytes: int = WorkerSettings.model_fields["kv_host_bytes"].default if host_dir else 0
    store = KVStoreConfig(
        url=store_url,
        compression="none",
        host_dir=host_dir,
        host_bytes=host_bytes // plan.tensor_parallel,
        host_owner="bench",
        ttl_s=20.0,
    )
    engine = RankEngine(RankEngineOptions(run=run_config, kv_store=store))
    try:
        driver = Driver(engine, await engine.start(), batch)
        written = _WrittenBlocks(driver, engine)
        rates: dict[bool, list[float]] = {True: [], False: []}
        generator = np.random.default_rng(0)
        meanwhile = 0
        for repeat in range(plan.repeats + 1):  # the first one warms up
            for writes in (True, False) if repeat % 2 else (False, True):
                driver.write_behind.enabled = writes
                before = written.num_bytes
                prompts = generator.integers(10, 400, (batch, prompt)).tolist()
                run = await driver.run_batch(prompts, tokens)
                if repeat:
                    rates[writes].append(run.decode_rate)
                    meanwhile += written.num_bytes - before
                await written.settle()
            progress("decoding with and without writing")
    finally:
        await engine.stop()
    on, off = median(rates[True]), median(rates[False])
    costs = sorted(1 - a / b for a, b in zip(rates[True], rates[False], strict=True))
    return {
        "batch": batch,
        "decode_tokens_per_s": {"on": round(on, 1), "off": round(off, 1)},
        "cost_share": round(1 - on / off, 4),
        "cost_share_of_pairs": [round(costs[0], 4), round(median(costs), 4), round(costs[-1], 4)],
        "blocks_written": written.count,
        "blocks_dropped": written.dropped,
        "megabytes_written": round(written.num_bytes / 1e6, 1),
        "megabytes_written_meanwhile": round(meanwhile / 1e6, 1),
        "host_tier": bool(host_dir),
    }


class _WrittenBlocks:
    """Counts the blocks that ranks wrote or dropped."""

    def __init__(self, driver: Driver, engine: RankEngine) -> None:
        self.count = self.dropped = self.num_bytes = 0
        self._driver = driver
        self._seen = -1
        engine.watch_store(self._on_stored)

    async def settle(self) -> None:
        """Return when nothing has been written for a moment."""
        while self._seen != self.count + self.dropped:
            self._seen = self.count + self.dropped
            await asyncio.sleep(0.3)
        self._seen = -1

    def _on_stored(self, stored: StoreResult) -> None:
        names, dropped = kv_hash.split(stored.names), kv_hash.split(stored.dropped)
        self.count += len(names)
        self.dropped += len(dropped)
        self.num_bytes += stored.num_bytes
        self._driver.write_behind.done(names, dropped)
