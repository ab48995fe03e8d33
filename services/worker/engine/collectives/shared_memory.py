"""Collectives of ranks on one host over an anonymous shared file that all of them inherit.

The file has no name, so nothing remains of it when the processes end. Each rank has a count of operations
(`signals.py`) and three slots; in operation n it writes slot n % 3, publishes n, and reads the others' slots
once their counts show n. On other machines than x86-64 the backend refuses to start.
"""

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.collectives.base import CollectiveError
from services.worker.engine.collectives.signals import PythonSignals, Signals
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.signals import NativeSignals
from services.worker.rank_protocol.rank_messages import CACHE_LINE, SLOT_BYTES, SLOTS, shared_bytes
from shared.host.cores_and_memory import usable_cores

SLOT_FLOATS = SLOT_BYTES // 4

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """Additional memory shared by the ranks, with its addresses in this process.

    Attributes:
        signals: Address of one cache line for each rank, initially zero.
        address: Address of the rest.
        memory: Object that keeps the memory mapped.
    """

    signals: int
    address: int
    memory: mmap.mmap


class SharedMemoryCollectives:
    """See `Collectives` for the contract.

    Args:
        shared_fd: Descriptor of a file of `shared_bytes(world)` zero bytes, the same for all ranks. It may be
            closed afterwards.
        world: Number of ranks, at least 2.
        timeout_s: Longest wait for the others.
        kernels: Compiled code for waiting and summing; None to use Python and numpy.
    """

    def __init__(
        self, shared_fd: int, rank: int, world: int, timeout_s: float, kernels: KernelLibrary | None = None
    ) -> None:
        if platform.machine() not in {"x86_64", "AMD64"}:
            raise ModelError(
                f"shared-memory collectives need x86-64, this is {platform.machine()}; set collectives=gloo"
            )
        self.rank = rank
        self.world = world
        self.timeout_s = timeout_s
        self.seconds = 0.0
        self._fd = os.dup(shared_fd)
        shared = mmap.mmap(shared_fd, shared_bytes(world))
        spin = world <= usable_cores()
        self._signals: Signals = PythonSignals(memoryview(shared), rank, world, spin)
        self._native: NativeSignals | None = None
        if kernels is not None:
            address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
            self._native = NativeSignals(kernels, address, rank, world, spin=spin)
            self._signals = self._native
            self._slots_address = address + CACHE_LINE * world
        # slots[n % SLOTS][rank]: floats of one rank in operation n
        self._slots: list[list[Floats]] = [
            [
                np.frombuffer(
                    shared,
                    np.float32,
                    SLOT_FLOATS,
                    CACHE_LINE * world + (number * world + other) * SLOT_BYTES,
                )
                for other in range(world)
            ]
            for number in range(SLOTS)
        ]

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Sums in the order of ranks; see `Collectives`."""
        began = time.perf_counter()
        if self._native is not None:
            flat = tensor.view(-1)  # raises if the tensor is not contiguous
            self._check(
                self._native.all_reduce(
                    self._slots_address, SLOT_FLOATS, flat.data_ptr(), flat.numel(), self.timeout_s
                )
            )
        else:
            for part in _chunks(tensor):
                size = part.size
                slots = self._publish(part)
                self._await()
                np.add(slots[0][:size], slots[1][:size], out=part)
                for slot in slots[2:]:
                    np.add(part, slot[:size], out=part)
        self.seconds += time.perf_counter() - began

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See `Collectives`."""
        gathered = self._gather(tensor, wanted=True)
        assert gathered is not None
        return gathered

    def gather(self, tensor: Tensor) -> Tensor | None:
        """See `Collectives`."""
        return self._gather(tensor, wanted=self.rank == 0)

    def broadcast(self, data: bytes) -> bytes:
        """See `Collectives`."""
        began = time.perf_counter()
        if len(data) > 1024:
            raise ValueError(f"broadcast is for at most 1024 bytes, got {len(data)}")
        source = self._publish(np.empty(0, np.float32))[0] if self.rank else self._publish_bytes(data)
        self._await()
        raw = source.view(np.uint8)
        length = int(raw[:4].view(np.uint32)[0])
        answer = raw[4 : 4 + length].tobytes()
        self.seconds += time.perf_counter() - began
        return answer

    def barrier(self) -> None:
        """See `Collectives`."""
        self._publish(np.empty(0, np.float32))
        self._await()

    def close(self) -> None:
        """Releases the shared memory; it is unmapped with its last view, which a traceback may hold."""
        self._slots = []
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def map_region(self, num_bytes: int) -> SharedRegion:
        """Extends the shared file and maps the new part; may be called once.

        Args:
            num_bytes: Size of the part, the same on all ranks.
        """
        begin = -(-shared_bytes(self.world) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        size = CACHE_LINE * self.world + num_bytes
        if os.fstat(self._fd).st_size < begin + size:
            os.ftruncate(self._fd, begin + size)
        memory = mmap.mmap(self._fd, size, offset=begin)
        lines = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return SharedRegion(lines, lines + CACHE_LINE * self.world, memory)

    def _gather(self, tensor: Tensor, wanted: bool) -> Tensor | None:
        began = time.perf_counter()
        result = torch.empty(self.world, *tensor.shape) if wanted else None
        rows = result.view(self.world, -1).numpy() if result is not None else None
        offset = 0
        for part in _chunks(tensor):
            slots = self._publish(part)
            if rows is not None:
                self._await()
                for other, slot in enumerate(slots):
                    rows[other, offset : offset + part.size] = slot[: part.size]
            offset += part.size
        self.seconds += time.perf_counter() - began
        return result

    def _publish(self, part: Floats) -> list[Floats]:
        """Starts an operation with this rank's floats; returns all slots of the operation."""
        slots = self._begin()
        if part.size:
            slots[self.rank][: part.size] = part
        self._signals.publish()
        return slots

    def _publish_bytes(self, data: bytes) -> Floats:
        slot = self._begin()[self.rank]
        raw = slot.view(np.uint8)
        raw[:4].view(np.uint32)[0] = len(data)
        raw[4 : 4 + len(data)] = np.frombuffer(data, np.uint8)
        self._signals.publish()
        return slot

    def _begin(self) -> list[Floats]:
        # The slot was last used in operation n-3. A rank that has published n-1 has read all of n-3. That
        # holds for compiled code, too, which publishes n-1 before it reads n-2.
        self._await()
        return self._slots[(self._signals.count + 1) % SLOTS]

    def _await(self) -> None:
        """Waits until every other rank has published as many operations as this one."""
        self._check(self._signals.wait(self.timeout_s))

    def _check(self, late: int | None) -> None:
        if late is not None:
            raise CollectiveError(f"rank {late} did not answer the others within {self.timeout_s:g} s")


def _chunks(tensor: Tensor) -> Iterator[Floats]:
    """Views of a contiguous fp32 tensor, each at most as large as a slot."""
    flat: Floats = tensor.view(-1).numpy()
    step = SLOT_FLOATS
    if flat.size <= step:
        yield flat
        return
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step]
