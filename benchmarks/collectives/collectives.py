"""Measures the all-reduce between ranks on this machine, each backend beside a memory copy of the same bytes.

The ranks are processes that connect as those of an engine do (`services/worker/engine/rank/rank_process.py`).
Copies and all-reduces take turns, so that other load on the machine disturbs both.
"""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from benchmarks.engine_plans import CollectivesPlan
from benchmarks.lib.child import ChildObject, receive_all
from benchmarks.lib.measuring import Progress, percentile, percentiles
from services.worker.rank_protocol.rank_messages import RankConfig, shared_bytes
from services.worker.rank_protocol.run_config import EngineRunConfig

ROUNDS = 5
ROUND_S = 0.2  # measured seconds of a round, about
_MAX_OPERATIONS = 2000  # of a round
_WARMUP = 5  # uncounted operations before each round, since the ranks do not begin at the same moment
_LIMIT_S = 300.0


class CollectivesRank:
    """One rank, in a process of its own."""

    def __init__(self, config: RankConfig) -> None:
        import torch  # noqa: PLC0415 (only the child needs it)

        from services.worker.engine.rank.rank_process import connect  # noqa: PLC0415

        torch.set_num_threads(1)
        self._torch = torch
        self._collectives = connect(config)

    def all_reduce(self, num_bytes: int, count: int) -> list[float]:
        """Return the seconds of each of `count` sums; all ranks have to be asked for the same."""
        tensor = self._torch.ones(num_bytes // 4)
        times = []
        for _ in range(_WARMUP + count):
            began = time.perf_counter()
            self._collectives.all_reduce_sum(tensor)
            times.append(time.perf_counter() - began)
            tensor.fill_(1.0)
        return times[_WARMUP:]

    def copy(self, num_bytes: int, count: int) -> list[float]:
        """Return the seconds of each of `count` copies of that many bytes, on one thread."""
        source, target = self._torch.ones(num_bytes // 4), self._torch.zeros(num_bytes // 4)
        times = []
        for _ in range(_WARMUP + count):
            began = time.perf_counter()
            target.copy_(source)
            times.append(time.perf_counter() - began)
        return times[_WARMUP:]


async def measure(plan: CollectivesPlan, progress: Progress) -> list[dict[str, Any]]:
    """Measure a row for each backend and size. Raises `BenchError` when the ranks do not find each other."""
    rows = []
    for backend in plan.backends:
        progress(f"{backend}: {plan.ranks} ranks meet")
        children: list[ChildObject] = []
        try:
            _start(children, plan.ranks, backend)
            await receive_all(children, _LIMIT_S)
            for size in plan.sizes:
                rows.append(await _measure_size(children, backend, size, progress))
        finally:
            for child in children:
                child.close()
    return rows


def _start(children: list[ChildObject], ranks: int, backend: str) -> None:
    """Start the ranks; each is put into the list at once, so that the caller can end it."""
    with ExitStack() as stack:
        config = RankConfig(
            run=EngineRunConfig(
                tensor_parallel=ranks,
                threads=1,
                collectives="shm" if backend == "shm" else "gloo",
                engine_start_timeout_s=_LIMIT_S,
                step_timeout_s=_LIMIT_S,
            )
        )
        memory = os.memfd_create("ryz-bench")
        stack.callback(os.close, memory)
        if backend == "shm":
            os.ftruncate(memory, shared_bytes(ranks))
            config = msgspec.structs.replace(config, shared_fd=memory)
        else:
            config = msgspec.structs.replace(config, store_fd=memory)
        maker = "benchmarks.collectives.collectives:CollectivesRank"
        for rank in range(ranks):
            own = {"config": msgspec.structs.replace(config, rank=rank)}
            children.append(ChildObject(maker, own, {"OMP_NUM_THREADS": "1"}, [memory]))


async def _measure_size(
    children: list[ChildObject], backend: str, size: int, progress: Progress
) -> dict[str, Any]:
    progress(f"{backend}: {size:,} bytes")
    probe = await _together(children, "all_reduce", size, 5)
    count = max(5, min(_MAX_OPERATIONS, int(ROUND_S / max(1e-6, percentile(sorted(probe), 0.5)))))
    sums: list[float] = []
    copies: list[float] = []
    for _ in range(ROUNDS):
        copies += await _together(children[:1], "copy", size, count)
        sums += await _together(children, "all_reduce", size, count)
    sums.sort()
    copies.sort()
    p50, copy_p50 = percentile(sums, 0.5), percentile(copies, 0.5)
    return {
        "backend": backend, "ranks": len(children), "bytes": size, "operations": len(sums),
        **percentiles(sums, "", "us", scale=1e6, digits=2),
        **percentiles(copies, "copy", "us", scale=1e6, digits=2),
        "times_of_copy": round(p50 / copy_p50, 2),
    }  # fmt: skip


async def _together(children: Sequence[ChildObject], method: str, size: int, count: int) -> list[float]:
    """Have all ranks do the same at once; return rank 0's seconds."""
    for child in children:
        child.send(method, size, count)
    seconds: list[float] = (await receive_all(children, _LIMIT_S))[0]
    return seconds


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)
