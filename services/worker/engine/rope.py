"""Rotary position embedding (Su et al., 2021) in the half-split layout of Hugging Face's Llama.

Tables for all positions of the context are made once; a step takes the rows of its tokens.
"""

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines by position.

    Args:
        head_dim: Even.
        context_length: Number of positions.
        theta: Base of the frequencies.
    """

    def __init__(self, head_dim: int, context_length: int, theta: float) -> None:
        half = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        angles = torch.outer(torch.arange(context_length, dtype=torch.float32), 1.0 / theta**half)
        self._cos = torch.cat((angles.cos(), angles.cos()), dim=-1)
        # signs are in the table, so that a rotation is a roll and a multiply-add
        self._sin = torch.cat((-angles.sin(), angles.sin()), dim=-1)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of those positions, each [tokens, 1, head_dim]."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates [tokens, heads, head_dim] by what `RotaryTable.at` gave for these tokens."""
    cos, signed_sin = rotation
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), signed_sin)
