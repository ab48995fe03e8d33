"""Collectives over torch.distributed's NCCL: between GPUs, also of different hosts.

The operations are in `torch_distributed.py`. They are queued on the GPU and return before they are done, so
`seconds` has only the time of queueing, and a rank that stays away is noticed by NCCL's own thread: after the
timeout it ends the process, which the leader sees as it sees any lost rank.
"""

import os

import torch
from torch import distributed

from services.worker.engine.checkpoint.json_fields import ModelError
from services.worker.engine.collectives.torch_distributed import Meeting, TorchCollectives


class NcclCollectives(TorchCollectives):
    """See `TorchCollectives`.

    Args:
        meeting, rank, world, start_timeout_s, timeout_s: As there.
        device: This rank's GPU; no two ranks share one.

    Raises:
        ModelError: this build of torch has no NCCL.
    """

    def __init__(
        self,
        meeting: Meeting,
        rank: int,
        world: int,
        start_timeout_s: float,
        timeout_s: float,
        *,
        device: torch.device,
    ) -> None:
        if not distributed.is_nccl_available():
            raise ModelError(
                f"device=cuda with {world} ranks needs NCCL, which torch {torch.__version__} was built "
                f"without; install a CUDA build of torch for Linux (docs/gpu.md), or set tensor_parallel=1"
            )
        if meeting.interface:
            os.environ["NCCL_SOCKET_IFNAME"] = meeting.interface
        super().__init__(meeting, rank, world, start_timeout_s, timeout_s, backend="nccl", device=device)
