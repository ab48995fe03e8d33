"""Rotary position embedding (Su et al., 2021) in the half-split layout of Hugging Face's Llama.

The angles of a step's tokens are computed once and used by every layer.
"""

import torch
from torch import Tensor


class RotaryEmbedding:
    """Cosines and sines by position.

    Args:
        head_dim: Even.
        theta: Base of the frequencies.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        half = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.frequencies = 1.0 / theta**half

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of those positions, each [tokens, 1, head_dim]; for `rotate`."""
        angles = positions.to(torch.float32).view(-1, 1, 1) * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        # with the signs in the sines, a rotation is a roll and a multiply-add
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates [tokens, heads, head_dim] by what `RotaryEmbedding.at` gave for these tokens."""
    cos, signed_sin = rotation
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), signed_sin)
