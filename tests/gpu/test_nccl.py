"""The contract tests of the collectives, run over NCCL with one rank per GPU."""

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.engine.collectives.nccl import NcclCollectives
from services.worker.engine.collectives.torch_distributed import Rendezvous
from services.worker.engine.plain.cuda_graphs import CudaCapture
from tests.integration.engine.test_engine_collectives import (  # noqa: F401 (the contract's tests, over NCCL here)
    test_a_matrix_is_summed_in_place,
    test_a_slow_reader_loses_nothing,
    test_bf16_is_summed_in_fp32_and_rounded_once,
    test_broadcast_takes_what_rank_0_says,
    test_gathers,
    test_no_rank_leaves_a_barrier_before_all_came,
    test_sums_are_in_rank_order_and_the_same_bits_everywhere,
)
from tests.kits.engine.collectives.launch import ranks_outcomes

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[dict[str, Any]]]:
    """The results of each rank, in rank order."""
    if GPUS < 2:
        pytest.skip(f"needs two GPUs, torch finds {GPUS}")
    with ranks_outcomes("nccl", GPUS, device="cuda") as found:
        yield found


@pytest.fixture
def alone() -> Iterator[NcclCollectives]:
    """A group of one GPU, which still goes through NCCL."""
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        rendezvous = Rendezvous(
            rank=0,
            world=1,
            timeout_s=30.0,
            host="127.0.0.1",
            port=meeting.getsockname()[1],
            listen_fd=meeting.detach(),
        )
    torch.cuda.set_device(0)
    with closing(NcclCollectives(rendezvous, 30.0, device=torch.device("cuda", 0))) as collectives:
        yield collectives


def test_a_group_of_one_is_the_identity(alone: NcclCollectives) -> None:
    tensor = torch.arange(6.0, device="cuda").view(2, 3)
    alone.all_reduce_sum(tensor)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert alone.all_gather(tensor).shape == (1, 2, 3)
    assert alone.broadcast(b"hello") == b"hello"
    alone.barrier()


def test_collectives_can_be_recorded(alone: NcclCollectives) -> None:
    tensor = torch.ones(4, device="cuda")

    def work() -> Tensor:
        return alone.all_gather(tensor)

    replay, gathered = CudaCapture(torch.device("cuda", 0))(work)
    assert gathered is not None
    tensor.fill_(7)
    replay()
    assert gathered.tolist() == [[7.0] * 4]
