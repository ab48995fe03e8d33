"""One rank of the collectives' contract tests.

It is forked by `fork_server.py`; on GPUs it is a process of its own,
`python -m tests.kits.engine.collectives.rank FD PID`.

It runs every check of the contract in the same order as its peers and sends the pickled outcomes to the test.
"""

import pickle
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from services.worker.engine.collectives.base import CollectiveError, Collectives
from services.worker.engine.collectives.torch_distributed import TorchCollectives
from services.worker.engine.rank.rank_process import connect
from services.worker.rank_protocol.rank_messages import FrameReader, RankConfig

SIZES = (1, 7, 2048, 65_536, 65_537, 300_001)  # up to more than four chunks of shared memory


def values_of(rank: int, size: int) -> Tensor:
    """A rank's input; every rank and the test can compute it."""
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * size + rank))


def _sums(collectives: Collectives) -> list[Tensor]:
    results = []
    for size in SIZES:
        tensor = values_of(collectives.rank, size)
        collectives.all_reduce_sum(tensor)
        results.append(tensor)
    return results


def _half_sums(collectives: Collectives) -> Tensor | None:
    """A sum of bf16 values, if the backend supports them."""
    if not isinstance(collectives, TorchCollectives):
        return None
    tensor = values_of(collectives.rank, 500).to(torch.bfloat16)
    collectives.all_reduce_sum(tensor)
    return tensor


def _matrix_in_place(collectives: Collectives) -> Tensor:
    tensor = torch.full((3, 5), float(collectives.rank))
    view = tensor
    collectives.all_reduce_sum(tensor)
    return view


def _gathers(collectives: Collectives) -> tuple[Tensor, Tensor | None]:
    tensor = values_of(collectives.rank, 12).view(3, 4)
    return collectives.all_gather(tensor), collectives.gather(tensor)


def _slow_reader(collectives: Collectives) -> list[Tensor]:
    """Delays rank 0 in `gather`: the others do not wait for it, and must not overwrite unread values."""
    results = []
    for number in range(12):
        if collectives.rank == 0:
            time.sleep(0.005)
        gathered = collectives.gather(torch.full((2000,), float(100 * number + collectives.rank)))
        if gathered is not None:
            results.append(gathered)
    total = torch.ones(10)
    collectives.all_reduce_sum(total)
    return [*results, total]


def _broadcast(collectives: Collectives) -> list[bytes]:
    return [collectives.broadcast(data if collectives.rank == 0 else b"ignored") for data in (b"hello", b"")]


def _too_large(collectives: Collectives) -> str:
    try:
        collectives.broadcast(bytes(1025))
    except ValueError as error:
        return str(error)
    return ""


def _barrier(collectives: Collectives) -> tuple[float, float]:
    """Times at which this rank entered and left the barrier."""
    time.sleep(0.02 * collectives.rank)
    came = time.monotonic()
    collectives.barrier()
    return came, time.monotonic()


def _hang(collectives: Collectives) -> tuple[str, float]:
    """Leaves out the last rank; returns the others' error and the seconds to it. Must be the last check."""
    if collectives.rank == collectives.world - 1:
        time.sleep(collectives.timeout_s + 0.5)
        return "", 0.0
    began = time.monotonic()
    try:
        collectives.all_reduce_sum(torch.ones(4))
    except CollectiveError as error:
        return str(error), time.monotonic() - began
    return "no error", 0.0


CHECKS: tuple[Callable[[Collectives], Any], ...] = (
    _sums, _half_sums, _matrix_in_place, _gathers, _slow_reader, _broadcast, _too_large, _barrier, _hang,
)  # fmt: skip


def run_checks(sock: socket.socket, descriptors: Mapping[int, int]) -> None:
    """Reads the config, runs the checks and sends the outcomes.

    Args:
        sock: Connected to the test.
        descriptors: This process's numbers of descriptors, by their numbers in the test.
    """
    with sock:
        reader, config = FrameReader(), None
        while config is None:
            for _, body in reader.feed(sock.recv(65536)):
                config = msgspec.msgpack.decode(body, type=RankConfig)
        shared, store = (descriptors.get(fd, fd) for fd in (config.shared_fd, config.store_fd))
        torch.set_num_threads(1)
        collectives = connect(msgspec.structs.replace(config, shared_fd=shared, store_fd=store))
        collectives.timeout_s = config.run.collective_timeout_s
        # with NCCL, `_hang` would end the process: its watchdog thread aborts after the timeout
        checks = CHECKS[:-1] if config.run.collectives == "nccl" else CHECKS
        outcomes = {check.__name__: check(collectives) for check in checks}
        outcomes["seconds"] = collectives.seconds
        sock.sendall(pickle.dumps(outcomes))
        collectives.close()


if __name__ == "__main__":
    run_checks(socket.socket(fileno=int(sys.argv[1])), {})
