"""Measures how fast this machine, or its GPU, reads memory, with as many processes as the engine has ranks.

It bounds decoding: a step takes at least as long as reading the weights once. The buffers that are read are
far larger than the caches.
"""

import time
from collections.abc import Callable

from benchmarks.lib.child import ChildObject, receive_all

BUFFER_BYTES = 512 << 20  # of each process; larger than the last cache of any machine of this kind
SHARE_S = 0.25  # seconds that all processes read at the same time
_REPEATS = 4


class BandwidthReader:
    """Reads a buffer of its own, in a process of its own; on a GPU the first one, if there are several."""

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES, device: str = "cpu") -> None:
        import torch  # noqa: PLC0415 (only the child needs it)

        torch.set_num_threads(threads)
        self._buffer = torch.ones(buffer_bytes // 4, device=device)
        self._wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
        self.read(0.0)  # the first pass starts the threads

    def read(self, seconds: float) -> float:
        """Read for that long, at least once; return bytes per second."""
        began, passes = time.perf_counter(), 0
        while True:
            self._buffer.sum()
            self._wait()
            passes += 1
            took = time.perf_counter() - began
            if took >= seconds:
                return passes * self._buffer.nbytes / took


async def measure_bandwidth(
    processes: int, threads: int, buffer_bytes: int = BUFFER_BYTES, device: str = "cpu"
) -> float:
    """Return the bytes per second that all processes read together, the best of a few tries."""
    children: list[ChildObject] = []
    try:
        for _ in range(processes):
            arguments = {"threads": threads, "buffer_bytes": buffer_bytes, "device": device}
            maker = "benchmarks.engine.bandwidth:BandwidthReader"
            children.append(ChildObject(maker, arguments, {"OMP_NUM_THREADS": str(threads)}))
        await receive_all(children, 300.0)
        best = 0.0
        for _ in range(_REPEATS):
            for child in children:
                child.send("read", SHARE_S)
            best = max(best, sum(await receive_all(children, 300.0)))
        return best
    finally:
        for child in children:
            child.close()
