"""How fast this machine reads memory, with as many processes and threads as the engine has.

The yardstick of decoding: a step cannot be quicker than reading the weights once. Measured by reading a
buffer that is far larger than the caches.
"""

import asyncio
import time

from benchmarks.lib.child import Child

BUFFER_BYTES = 512 << 20  # of each process; larger than the last cache of any machine of this kind
_SHARE_S = 0.25  # seconds that all processes read at the same time
_REPEATS = 4


class Reader:
    """Reads a buffer of its own, in a process of its own."""

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        import torch  # noqa: PLC0415 (only the child needs it)

        torch.set_num_threads(threads)
        self._buffer = torch.ones(buffer_bytes // 4)
        self.read(0.0)  # the first pass starts the threads

    def read(self, seconds: float) -> float:
        """Reads for that long, at least once; bytes per second."""
        began, passes = time.perf_counter(), 0
        while True:
            self._buffer.sum()
            passes += 1
            took = time.perf_counter() - began
            if took >= seconds:
                return passes * self._buffer.nbytes / took


async def measure_bandwidth(processes: int, threads: int, buffer_bytes: int = BUFFER_BYTES) -> float:
    """Bytes per second that all processes read together, the best of a few tries. Raises `ChildError`."""
    children: list[Child] = []
    try:
        for _ in range(processes):
            arguments = {"threads": threads, "buffer_bytes": buffer_bytes}
            children.append(
                Child("benchmarks.engine.bandwidth:Reader", arguments, {"OMP_NUM_THREADS": str(threads)})
            )
        for child in children:
            await asyncio.to_thread(child.receive, 60.0)
        best = 0.0
        for _ in range(_REPEATS):
            for child in children:
                child.send("read", _SHARE_S)
            rates = [float(await asyncio.to_thread(child.receive, 60.0)) for child in children]
            best = max(best, sum(rates))
        return best
    finally:
        for child in children:
            child.close()
