"""Collectives over torch.distributed's NCCL, between GPUs of one or several hosts.

The operations are in `torch_distributed.py`. They are queued on the GPU and return before they are done, so
`seconds` counts only the time of queueing. If a rank is missing, NCCL's watchdog thread ends the process
after the timeout, which the leader handles as a lost rank.
"""

import os

import torch
from torch import distributed

from services.worker.engine.collectives.torch_distributed import Rendezvous, TorchCollectives
from services.worker.engine.config.json_fields import ModelError


class NcclCollectives(TorchCollectives):
    """See `TorchCollectives`.

    Args:
        rendezvous: Where the ranks find each other.
        timeout_s: Longest wait for the others in one operation.
        device: This rank's GPU; no two ranks share one.

    Raises:
        ModelError: This build of torch has no NCCL.
    """

    def __init__(self, rendezvous: Rendezvous, timeout_s: float, *, device: torch.device) -> None:
        if not distributed.is_nccl_available():
            raise ModelError(
                f"device=cuda with {rendezvous.world} ranks needs NCCL, which torch {torch.__version__} "
                f"was built without; install a CUDA build of torch for Linux (docs/gpu.md), or set "
                f"tensor_parallel=1"
            )
        if rendezvous.interface:
            os.environ["NCCL_SOCKET_IFNAME"] = rendezvous.interface
        super().__init__(rendezvous, timeout_s, backend="nccl", device=device)
