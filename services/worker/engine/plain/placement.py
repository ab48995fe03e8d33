"""The device and floating-point type of the plain path's tensors."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and type of weights, activations and KV cache; by default those of the oracle."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32

    @property
    def on_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device.type == "cuda"

    @property
    def format(self) -> str:
        """The type's short name."""
        return _NAMES[self.dtype]

    def move(self, tensor: Tensor) -> Tensor:
        """Moves a tensor to the device and type; returns the same one if it is there already."""
        return tensor.to(self.device, self.dtype)

    def move_optional(self, tensor: Tensor | None) -> Tensor | None:
        """`move` of a tensor, or None."""
        return None if tensor is None else self.move(tensor)


CPU = Placement()
