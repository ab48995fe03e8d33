"""Collectives over torch.distributed's NCCL: between GPUs, also of different hosts.

The operations are in `torch_distributed.py`. They are queued on the GPU and return before they are done, so
`seconds` has only the time of queueing. NCCL's own thread notices a rank that is missing: after the timeout
it ends the process, which the leader sees as any lost rank.
"""

import os

import torch
from torch import distributed

from services.worker.engine.checkpoint.json_fields import ModelError
from services.worker.engine.collectives.torch_distributed import Rendezvous, TorchCollectives


class NcclCollectives(TorchCollectives):
    """See `TorchCollectives`.

    Args:
        rendezvous: As there.
        timeout_s: As there.
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
