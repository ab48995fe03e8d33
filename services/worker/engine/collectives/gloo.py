"""Collectives over torch.distributed's Gloo: TCP, so ranks may be on different hosts.

Slower than shared memory by far on one host. An all-reduce is made of an all-gather and a sum in the order of
ranks: more traffic than Gloo's own ring, but the same bits as every other backend.
"""

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed

from services.worker.engine.collectives.base import CollectiveError

T = TypeVar("T")
_SIOCGIFADDR = 0x8915  # Linux


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks find each other.

    host, port: of the meeting point. listen_fd: its listening socket, on rank 0; -1 on the others.
    interface: network interface of the connections between ranks; empty: loopback.
    """

    host: str
    port: int
    listen_fd: int = -1
    interface: str = ""


class GlooCollectives:
    """See `Collectives` for the contract. One per process (torch.distributed keeps the group globally).

    Args:
        meeting: Where the ranks find each other.
        rank: This rank.
        world: Number of ranks, at least 2.
        start_timeout_s: Longest wait for all ranks to come.
        timeout_s: Longest wait for the others in one operation; fixed from the start here.
    """

    def __init__(
        self, meeting: Meeting, rank: int, world: int, start_timeout_s: float, timeout_s: float
    ) -> None:
        self.rank = rank
        self.world = world
        self.timeout_s = timeout_s
        self.seconds = 0.0
        os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface or _loopback()
        try:
            store = distributed.TCPStore(  # type: ignore[attr-defined]  # the stubs forget it
                meeting.host,
                meeting.port,
                world,
                is_master=rank == 0,
                timeout=timedelta(seconds=start_timeout_s),
                wait_for_workers=False,
                master_listen_fd=meeting.listen_fd if rank == 0 else None,
            )
            distributed.init_process_group(
                "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s)
            )
        except RuntimeError as error:
            where = f"{meeting.host}:{meeting.port}"
            raise CollectiveError(f"gloo: rank {rank} could not join at {where}: {error}") from error

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Sums in the order of ranks; see `Collectives`."""
        parts = self._parts(tensor)
        torch.add(parts[0], parts[1], out=tensor)
        for part in parts[2:]:
            tensor.add_(part)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See `Collectives`."""
        return torch.stack(self._parts(tensor))

    def gather(self, tensor: Tensor) -> Tensor | None:
        """See `Collectives`."""
        parts = [torch.empty_like(tensor) for _ in range(self.world)] if self.rank == 0 else None
        self._run(lambda: distributed.gather(tensor, parts, dst=0))
        return torch.stack(parts) if parts is not None else None

    def broadcast(self, data: bytes) -> bytes:
        """See `Collectives`."""
        if len(data) > 1024:
            raise ValueError(f"broadcast is for at most 1024 bytes, got {len(data)}")
        buffer = torch.zeros(1028, dtype=torch.uint8)
        if self.rank == 0:
            framed = len(data).to_bytes(4, "little") + data
            buffer[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
        self._run(lambda: distributed.broadcast(buffer, src=0))
        raw = buffer.numpy().tobytes()
        return raw[4 : 4 + int.from_bytes(raw[:4], "little")]

    def barrier(self) -> None:
        """See `Collectives`."""
        self._run(distributed.barrier)

    def close(self) -> None:
        """Leaves the process group."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        self._run(lambda: distributed.all_gather(parts, tensor))
        return parts

    def _run(self, operation: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return operation()
        except RuntimeError as error:  # torch raises no narrower type for a lost peer or a timeout
            raise CollectiveError(f"gloo: rank {self.rank} lost the others: {error}") from error
        finally:
            self.seconds += time.perf_counter() - began


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address.

    Raises:
        CollectiveError: none has.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise CollectiveError(
        f"gloo: no network interface has the address {address}; name one by RYZ_GLOO_INTERFACE or --interface"
    )


def _loopback() -> str:
    names = {name for _, name in socket.if_nameindex()}
    return "lo" if "lo" in names else "lo0"
