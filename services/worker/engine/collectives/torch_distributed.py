"""The common part of the torch.distributed backends: the rendezvous of the ranks, and all operations.

An all-reduce is an all-gather and a sum in rank order. It sends more than a ring all-reduce, but every rank
and backend gets the same bits. Tensors on another device than the backend's are copied there and back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed

from services.worker.engine.collectives.base import CollectiveError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks find each other: in a shared file, or at a port if they are on several hosts.

    Ranks of one host use the file, because every user of the host could connect to a port.

    Attributes:
        world: Number of ranks.
        timeout_s: Longest wait for all ranks.
        host: Host of the port; empty for the file.
        port: Port on that host.
        listen_fd: The port's listening socket, on rank 0; -1 on the others.
        interface: Network interface of the connections between ranks; empty for loopback.
        file_fd: An unnamed file that every rank has inherited; -1 for the port.
    """

    rank: int
    world: int
    timeout_s: float
    host: str = ""
    port: int = 0
    listen_fd: int = -1
    interface: str = ""
    file_fd: int = -1

    @property
    def name(self) -> str:
        """Its description in error messages."""
        return f"{self.host}:{self.port}" if self.file_fd < 0 else "the file that ranks of this host share"


class TorchCollectives:
    """See `Collectives` for the contract. A process can have only one: torch.distributed's group is global.

    Args:
        rendezvous: Where the ranks find each other.
        timeout_s: Longest wait for the others in one operation; later changes have no effect.
        backend: Name of the torch.distributed backend.
        device: Device of the backend's tensors.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        timeout_s: float,
        *,
        backend: Literal["gloo", "nccl"],
        device: torch.device,
    ) -> None:
        rank, world = rendezvous.rank, rendezvous.world
        self.rank = rank
        self.world = world
        self.timeout_s = timeout_s
        self.seconds = 0.0
        self._backend = backend
        self._device = device
        try:
            store = _store(rendezvous)
            distributed.init_process_group(
                backend,
                store=store,
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout_s),
                device_id=device if device.type == "cuda" else None,
            )
        except RuntimeError as error:
            raise CollectiveError(
                f"{backend}: rank {rank} could not join at {rendezvous.name}: {error}"
            ) from error

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Sums in rank order, in fp32 for every dtype; see `Collectives`."""
        parts = self._parts(tensor)
        if self.world == 1:
            return
        if tensor.dtype == torch.float32 and tensor.device == self._device:
            torch.add(parts[0], parts[1], out=tensor)
            for part in parts[2:]:
                tensor.add_(part)
            return
        total = parts[0].to(torch.float32)
        for part in parts[1:]:
            total.add_(part)
        tensor.copy_(total)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See `Collectives`."""
        return torch.stack(self._parts(tensor)).to(tensor.device)

    def gather(self, tensor: Tensor) -> Tensor | None:
        """See `Collectives`."""
        own = tensor.to(self._device)
        parts = [torch.empty_like(own) for _ in range(self.world)] if self.rank == 0 else None
        self._run(lambda: distributed.gather(own, parts, dst=0))
        return torch.stack(parts).to(tensor.device) if parts is not None else None

    def broadcast(self, data: bytes) -> bytes:
        """See `Collectives`."""
        if len(data) > 1024:
            raise ValueError(f"broadcast is for at most 1024 bytes, got {len(data)}")
        buffer = torch.zeros(1028, dtype=torch.uint8)
        if self.rank == 0:
            framed = len(data).to_bytes(4, "little") + data
            buffer[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
        on_device = buffer.to(self._device)
        self._run(lambda: distributed.broadcast(on_device, src=0))
        raw = on_device.cpu().numpy().tobytes()
        return raw[4 : 4 + int.from_bytes(raw[:4], "little")]

    def barrier(self) -> None:
        """See `Collectives`."""
        self._parts(torch.zeros(1, device=self._device))[-1].tolist()  # `tolist` also waits for the GPU

    def close(self) -> None:
        """Leaves the process group."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        own = tensor.to(self._device)
        parts = [torch.empty_like(own) for _ in range(self.world)]
        self._run(lambda: distributed.all_gather(parts, own))
        return parts

    def _run(self, operation: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return operation()
        except RuntimeError as error:  # torch raises no narrower type for a lost peer or a timeout
            raise CollectiveError(f"{self._backend}: rank {self.rank} lost the others: {error}") from error
        finally:
            self.seconds += time.perf_counter() - began


def _store(rendezvous: Rendezvous) -> Any:
    """The store in which ranks exchange their addresses.

    Raises:
        RuntimeError: Not all ranks connected in time.
    """
    rank, world, timeout = rendezvous.rank, rendezvous.world, timedelta(seconds=rendezvous.timeout_s)
    if rendezvous.file_fd < 0:
        return distributed.TCPStore(  # type: ignore[attr-defined]  # the stubs forget it
            rendezvous.host,
            rendezvous.port,
            world,
            is_master=rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=rendezvous.listen_fd if rank == 0 else None,
        )
    # the descriptor stays open until the process ends, because each operation opens the path again
    store = distributed.FileStore(f"/proc/self/fd/{rendezvous.file_fd}", world)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    store.set(f"came/{rank}", "")
    store.wait([f"came/{other}" for other in range(world)], timeout)
    return store
