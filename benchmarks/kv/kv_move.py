"""How fast a rank moves KV blocks to Redis and back, and what that costs the processors.

The mover is the engine's own (`services/worker/engine/kv_transfer/kv_mover.py`), the cache an array in
memory. Writing is told apart from copying, which alone is in a step's way.
"""

import resource
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import redis
from numpy.typing import NDArray

from services.worker.engine.kv_transfer.kv_mover import KVMover
from services.worker.rank_protocol.kv_messages import (
    Compression,
    FetchBlocks,
    FetchResult,
    KVStoreConfig,
    StoreResult,
)
from services.worker.rank_protocol.plan import StoreBlock
from services.worker.rank_protocol.rank_messages import FrameKind
from shared.kv_store import data_key

_LIMIT_S = 60.0
_TTL_S = 120.0
_MB = 1e6


class MoveError(Exception):
    """The store did not do its part; the text says what it said."""


class ArrayBlocks:
    """Implements `CacheBlocks` over an array, [num_blocks, heads of the rank, head_bytes]."""

    def __init__(self, heads: range, writes: range, head_bytes: int, num_blocks: int) -> None:
        self.heads = heads
        self.writes = writes
        self.head_bytes = head_bytes
        self.data = np.zeros((num_blocks, len(heads), head_bytes), np.uint8)

    def copy_out(self, block: int, out: NDArray[np.uint8]) -> None:
        """See `CacheBlocks`."""
        first = self.writes.start - self.heads.start
        out[:, : self.head_bytes] = self.data[block, first : first + len(self.writes)]

    def copy_in(self, block: int, head: int, data: NDArray[np.uint8]) -> None:
        """See `CacheBlocks`."""
        self.data[block, self.heads.index(head)] = data


class _Reports:
    """Counts what a mover says, and waits for it."""

    def __init__(self) -> None:
        self.stored = 0
        self.num_bytes = 0
        self.errors: list[str] = []
        self.fetched: FetchResult | None = None
        self._changed = threading.Condition()

    def __call__(self, kind: FrameKind, message: msgspec.Struct) -> None:
        with self._changed:
            if isinstance(message, StoreResult):
                self.stored += (len(message.names) + len(message.dropped)) // 16
                self.num_bytes += message.num_bytes
                self.errors += [message.error] if message.error else []
            elif isinstance(message, FetchResult):
                self.fetched = message
                self.errors += [message.error] if message.error else []
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        with self._changed:
            finished = self._changed.wait_for(done, _LIMIT_S)
        if self.errors or not finished:
            raise MoveError(self.errors[0] if self.errors else f"not done in {_LIMIT_S:g} s")


def measure(
    url: str,
    *,
    heads: int,
    head_bytes: int,
    num_blocks: int,
    compression: Compression = "none",
    rounds: int = 3,
) -> dict[str, Any]:
    """Writes and reads blocks of numbers in fp32; the median of the rounds. MB are 10**6 bytes of the cache.

    Args:
        url: of a Redis with room for the blocks twice; they are deleted afterwards.
        heads: of the rank. head_bytes: of one head of one block, a multiple of 4. num_blocks: of one round.

    Raises:
        MoveError: the store was away, or refused.
    """
    blocks = ArrayBlocks(range(heads), range(heads), head_bytes, 2 * num_blocks)
    numbers = np.random.default_rng(0).normal(size=(num_blocks, heads, head_bytes // 4)).astype(np.float32)
    blocks.data[:num_blocks] = numbers.view(np.uint8)
    total = num_blocks * heads * head_bytes
    config = KVStoreConfig(url=url, ttl_s=_TTL_S, queue_bytes=2 * total, compression=compression)
    client = redis.Redis.from_url(url)
    rows = []
    for _ in range(rounds + 1):
        reports = _Reports()
        mover = KVMover(config, blocks, reports)
        try:
            rows.append(_round(mover, reports, blocks, num_blocks, client))
        finally:
            mover.close()
    middle = {name: round(float(np.median([row[name] for row in rows[1:]])), 3) for name in rows[0]}
    shape = {"heads": heads, "head_bytes": head_bytes, "blocks": num_blocks, "compression": compression}
    return {**shape, **middle}


def _round(
    mover: KVMover, reports: _Reports, blocks: ArrayBlocks, num_blocks: int, client: redis.Redis
) -> dict[str, float]:
    common = secrets.token_bytes(12)
    names = [common + at.to_bytes(4, "big") for at in range(num_blocks)]
    mb = blocks.data.nbytes / 2 / _MB
    began, own, store = time.perf_counter(), _cpu_s(), _store_cpu_s(client)
    mover.take([StoreBlock(at, name) for at, name in enumerate(names)])
    copied = time.perf_counter()
    reports.wait(lambda: reports.stored == num_blocks)
    wrote, wrote_cpu, wrote_store = time.perf_counter(), _cpu_s(), _store_cpu_s(client)
    request = FetchBlocks(fetch_id=1, blocks=list(range(num_blocks, 2 * num_blocks)), names=b"".join(names))
    asked = time.perf_counter()
    mover.fetch(request)
    reports.wait(lambda: reports.fetched is not None)
    read, read_cpu, read_store = time.perf_counter(), _cpu_s(), _store_cpu_s(client)
    if not np.array_equal(blocks.data[:num_blocks], blocks.data[num_blocks:]):
        raise MoveError("what was read is not what was written")
    blocks.data[num_blocks:] = 0
    client.delete(*map(data_key, names))
    return {
        "copy_ms_per_mb": (copied - began) * 1e3 / mb,
        "write_mb_s": mb / (wrote - began),
        "read_mb_s": mb / (read - asked),
        "write_cpu_ms_per_mb": (wrote_cpu - own) * 1e3 / mb,
        "read_cpu_ms_per_mb": (read_cpu - wrote_cpu) * 1e3 / mb,
        "store_write_cpu_ms_per_mb": (wrote_store - store) * 1e3 / mb,
        "store_read_cpu_ms_per_mb": (read_store - wrote_store) * 1e3 / mb,
        "stored_share": reports.num_bytes / _MB / mb,
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _store_cpu_s(client: redis.Redis) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
