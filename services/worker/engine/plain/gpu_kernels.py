"""Finds the Triton kernels of the plain path on a GPU, or says why there are none.

Without them torch operators compute the same, with more launches and a copy of all keys. Triton is imported
here only: builds of torch for CPUs come without it.
"""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import structlog
import torch
from torch import Tensor

from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.rope import Rotation

log = structlog.get_logger(__name__)


class AttendInPlace(Protocol):
    """See `triton_kernels/attend.py`."""

    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        blocks: Tensor,
        newest: Tensor,
        window: int,
        scale: float,
    ) -> Tensor:
        """Attention of one token of each sequence, [sequences, heads * head_dim]."""
        ...


class RotateAndStore(Protocol):
    """See `triton_kernels/rotate.py`."""

    def __call__(
        self, states: Tensor, rotation: Rotation | None, slots: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Rotates queries and keys in place, and stores keys and values."""
        ...


@dataclass(frozen=True, slots=True)
class GpuKernels:
    """The kernels, for heads of at most `largest_head` numbers."""

    attend_in_place: AttendInPlace
    rotate_and_store: RotateAndStore
    largest_head: int


def gpu_kernels(placement: Placement) -> GpuKernels | None:
    """The kernels for a device, tried once; None on CPUs, and where Triton is missing or cannot compile."""
    return _tried_kernels(placement) if placement.on_gpu else None


@cache
def _tried_kernels(placement: Placement) -> GpuKernels | None:
    try:
        # they fail to import without Triton
        from services.worker.engine.plain.triton_kernels.attend import (  # noqa: PLC0415
            LARGEST_HEAD,
            attend_in_place,
        )
        from services.worker.engine.plain.triton_kernels.rotate import rotate_and_store  # noqa: PLC0415

        found = GpuKernels(attend_in_place, rotate_and_store, LARGEST_HEAD)
        _try(found, placement)
    except Exception as error:  # of many types: no compiler, no headers of Python, no directory to write to
        log.warning("computing without Triton kernels, which is slower", why=str(error))
        return None
    return found


def _try(kernels: GpuKernels, placement: Placement) -> None:
    states, cache = (
        torch.ones(size, 4, 64, dtype=placement.dtype, device=placement.device) for size in (1, 16)
    )
    numbers = torch.zeros(1, dtype=torch.int64, device=placement.device)
    keys, values = cache[:, :1].contiguous(), cache[:, 1:2].contiguous()
    kernels.rotate_and_store(states, None, numbers, keys, values)
    kernels.attend_in_place(
        states[:, :2], keys, values, blocks=numbers, newest=numbers, window=0, scale=1.0
    ).cpu()
