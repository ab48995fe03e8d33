"""What writing KV blocks behind costs the decoding: the same batches with it and without, in turns.

Ranks and a real store, as in a stack; what the KV state service does beside it is too little to see.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.engine.driver import Driver, kv_tokens
from cli.stack.host.private import write_private
from cli.stack.servers.redis_server import Store, find_redis, new_store_passwords
from services.worker.orchestrator.rank_engine import RankEngine, RankEngineOptions
from services.worker.rank_protocol.kv_messages import KVStoreConfig, StoreResult
from services.worker.rank_protocol.rank_messages import Quantize
from shared import kv_hash

_START_S = 10.0


async def measure(
    model: Path,
    quantize: Quantize,
    *,
    tensor_parallel: int,
    batch: int,
    repeats: int,
    progress: Callable[[str], None],
    prompt: int = 128,
    tokens: int = 192,
) -> dict[str, Any]:
    """Tokens a second with and without, medians, and the share that writing costs.

    Raises:
        EngineFailed, DriveError: no figures.
    """
    async with _store() as url:
        options = RankEngineOptions(
            model=model,
            tensor_parallel=tensor_parallel,
            quantize=quantize,
            kv_cache_tokens=kv_tokens(batch, prompt + tokens),
            kv_store=KVStoreConfig(url=url, ttl_s=20.0),
        )
        engine = RankEngine(options)
        try:
            driver = Driver(engine, await engine.start(), batch)
            written = _Written(driver, engine)
            rates: dict[bool, list[float]] = {True: [], False: []}
            generator = np.random.default_rng(0)
            for repeat in range(repeats + 1):  # the first one warms up
                for writes in (True, False) if repeat % 2 else (False, True):
                    driver.write_behind.enabled = writes
                    prompts = generator.integers(10, 400, (batch, prompt)).tolist()
                    run = await driver.run(prompts, tokens)
                    if repeat:
                        rates[writes].append(run.decode_tokens / run.decode_s)
                    await written.settle()
                progress("decoding with and without writing")
        finally:
            await engine.stop()
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
    }


class _Written:
    """Counts what ranks wrote, and waits until they are through with it."""

    def __init__(self, driver: Driver, engine: RankEngine) -> None:
        self.count = self.dropped = self.num_bytes = 0
        self._driver = driver
        self._seen = -1
        engine.watch_store(self._on_stored)

    async def settle(self) -> None:
        """Returns when nothing has been written for a moment."""
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


@asynccontextmanager
async def _store() -> AsyncIterator[str]:
    """A store of our own."""
    with TemporaryDirectory(prefix="ryz-") as folder:
        place = Path(folder)
        store = Store("redis-kv", place, place / "redis-kv.sock", 2**31, new_store_passwords(["worker"]))
        for path, text in store.files().items():
            write_private(path, text)
        command = [find_redis(), str(store.config)]
        process = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(_START_S):
                while not await store.answers():  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.02)
            yield store.url("worker")
        finally:
            process.terminate()
            process.wait(_START_S)
