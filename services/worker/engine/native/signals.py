"""Waiting of the ranks of one host for each other, and their all-reduce, in compiled code."""

import ctypes

from services.worker.engine.native.library import ALL_HERE, KernelLibrary
from services.worker.engine.native.structs.forward import RankBarrier


class NativeSignals:
    """See `Signals` in `collectives/signals.py`: spins, then sleeps on a futex.

    Args:
        address: Of one cache line for each rank, zeros at first; the caller keeps it mapped.
        world: Number of ranks.
        spin: Whether to wait on the core at first.
    """

    def __init__(self, kernels: KernelLibrary, address: int, rank: int, world: int, *, spin: bool) -> None:
        self._barrier = RankBarrier(published=address, rank=rank, world=world, spin=spin)
        self._kernels = kernels
        self._pointer = ctypes.byref(self._barrier)

    @property
    def count(self) -> int:
        """Operations that this rank has published."""
        return int(self._barrier.count)

    def publish(self) -> None:
        """See `Signals`."""
        self._kernels.publish_count(self._pointer)

    def wait(self, timeout_s: float) -> int | None:
        """See `Signals`."""
        self._barrier.timeout_ns = int(timeout_s * 1e9)
        return _late(self._kernels.wait_for_ranks(self._pointer))

    def all_reduce(self, slots: int, slot_floats: int, data: int, count: int, timeout_s: float) -> int | None:
        """Sums floats in place over the ranks, through slots [3][world][slot_floats]; returns as `wait`."""
        self._barrier.timeout_ns = int(timeout_s * 1e9)
        return _late(self._kernels.all_reduce(self._pointer, slots, slot_floats, data, count))


def _late(rank: int) -> int | None:
    return None if rank == ALL_HERE else rank
