"""A device and a floating-point type: what the parts of the plain path are told about where they compute."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tensors lie and what type weights, activations and KV cache have. Default: the oracle's."""

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

    def put(self, tensor: Tensor) -> Tensor:
        """Weights or activations there, in the type; the same tensor if it is so already."""
        return tensor.to(self.device, self.dtype)

    def put_maybe(self, tensor: Tensor | None) -> Tensor | None:
        """`put` for what may be missing."""
        return None if tensor is None else self.put(tensor)


CPU = Placement()
