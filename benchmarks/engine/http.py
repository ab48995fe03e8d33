"""Runs the batches of `ryz bench engine` through the whole stack: gateway, broker, router, leader, ranks.

The streams are read by `benchmarks/lib/streams.py`; `http_row.py` turns them into figures.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.engine.http_row import StreamRun
from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.stack import RunningStack, StackStarter
from benchmarks.lib.streams import stream_all
from services.worker.orchestrator.options import RankEngineOptions

_WORKER = "worker-g0"
_LIMIT_S = 900.0


class HttpDriver:
    """Runs batches on a stack with one group, one at a time."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack = stack
        # the leader is also counted alone: the rest of its group are the ranks
        self._meter = CpuMeter({**stack.pids, "leader": stack.pids[_WORKER]}, alone={"leader"})

    async def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> StreamRun:
        """Stream `num_tokens` for each prompt, all at once.

        Raises:
            BenchError: An answer was wrong or incomplete, or a process of the stack ended.
        """
        stack = self._stack
        self._meter.start()
        streams, own_s = await asyncio.to_thread(
            stream_all, stack.url, stack.model, prompts, num_tokens, _LIMIT_S
        )
        used = self._meter.read()
        used["ranks"] = used.pop(_WORKER) - used["leader"]
        return StreamRun(streams, {**used, "client": own_s})


@contextmanager
def http_driver(options: RankEngineOptions, start_stack: StackStarter) -> Iterator[HttpDriver]:
    """Give a driver for a stack with that engine; the stack ends with the block.

    Blocks until the stack is ready, so that an interruption meanwhile finds it in the caller's hands.
    """
    run = options.run
    command = {
        "--engine": "torch",
        "--groups": 1,
        "--model": run.model,
        "--model-name": "bench",
        "--tensor-parallel": run.tensor_parallel,
        "--precision": run.precision,
        "--kernels": run.kernels,
        "--log-level": "warning",
        "--start-timeout": run.engine_start_timeout_s,
    }
    settings = {
        "RYZ_THREADS": str(run.threads),
        "RYZ_KV_DTYPE": run.kv_dtype,
        "RYZ_KV_CACHE_TOKENS": str(run.kv_cache_tokens),
        "RYZ_STEP_TIMEOUT_S": str(run.step_timeout_s),
    }
    with start_stack(command, settings, timeout_s=run.engine_start_timeout_s) as stack:
        yield HttpDriver(stack)
