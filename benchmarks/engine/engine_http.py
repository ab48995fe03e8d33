"""Runs the batches of `ryz bench engine` through the whole stack: gateway, broker, router, leader, ranks.

The stack is what `ryz up` makes of the same options. How the streams are read stands in `streams.py`, the
sums in `http_row.py`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.engine.http_row import StreamRun
from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.stack import RunningStack, started
from benchmarks.lib.streams import stream_all
from services.worker.orchestrator.rank_engine import RankEngineOptions

_WORKER = "worker-g0"
_LIMIT_S = 900.0


class HttpDriver:
    """Runs batches on a stack with one group, one at a time."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack = stack
        # the leader alone as well: what is left of its group are the ranks
        self._meter = CpuMeter(stack.pids | {"leader": stack.pids[_WORKER]}, alone={"leader"})

    async def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> StreamRun:
        """Streams `num_tokens` for each prompt, all at once.

        Raises:
            StreamError: an answer was not what was asked for.
            LookupError: a process of the stack ended.
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
def http_driver(options: RankEngineOptions) -> Iterator[HttpDriver]:
    """A driver for a stack with that engine, which is ended with the block.

    Blocks until all is ready, so that an interruption meanwhile finds it in the caller's hands.

    Raises:
        CommandError: it did not come up.
    """
    command = {
        "--engine": "torch",
        "--groups": 1,
        "--model": options.model,
        "--model-name": "bench",
        "--tensor-parallel": options.tensor_parallel,
        "--quantize": options.quantize,
        "--kernels": options.kernels,
        "--log-level": "warning",
        "--start-timeout": options.start_timeout_s,
    }
    settings = {
        "RYZ_THREADS": str(options.threads),
        "RYZ_KV_DTYPE": options.kv_dtype,
        "RYZ_KV_CACHE_TOKENS": str(options.kv_cache_tokens),
        "RYZ_STEP_TIMEOUT_S": str(options.step_timeout_s),
    }
    words = [str(part) for option in command.items() for part in option]
    with started(words, settings, timeout_s=options.start_timeout_s) as stack:
        yield HttpDriver(stack)
