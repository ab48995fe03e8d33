"""The compiled way for ranks of one host to wait for each other, and to add up their tensors meanwhile."""

import ctypes

from services.worker.engine.native.library import ALL_HERE, Exchange, Kernels


class NativeSignals:
    """See `Signals` in `collectives/signals.py`: spins, then sleeps until it is woken.

    Args:
        kernels: Compiled for this machine.
        address: Of a cache line for each rank, zeros at first; the caller keeps it mapped.
        rank: This rank.
        world: Number of ranks.
        spin: Whether to wait on the core at first.
    """

    def __init__(self, kernels: Kernels, address: int, rank: int, world: int, *, spin: bool) -> None:
        self.exchange = Exchange(published=address, rank=rank, world=world, spin=spin, timeout_ns=0, count=0)
        self._kernels = kernels
        self._pointer = ctypes.byref(self.exchange)

    @property
    def count(self) -> int:
        """Operations that this rank has published."""
        return int(self.exchange.count)

    def publish(self) -> None:
        """See `Signals`."""
        self._kernels.publish(self._pointer)

    def wait(self, timeout_s: float) -> int | None:
        """See `Signals`."""
        self.exchange.timeout_ns = int(timeout_s * 1e9)
        return _late(self._kernels.wait(self._pointer))

    def all_reduce(self, slots: int, slot_floats: int, data: int, count: int, timeout_s: float) -> int | None:
        """Sums floats in place over the ranks, through slots [3][world][slot_floats]; returns as `wait`."""
        self.exchange.timeout_ns = int(timeout_s * 1e9)
        return _late(self._kernels.all_reduce(self._pointer, slots, slot_floats, data, count))


def _late(rank: int) -> int | None:
    return None if rank == ALL_HERE else rank
