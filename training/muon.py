"""The optimiser of the demo model's matrices; AdamW updates embeddings and norms.

Muon orthogonalises the momentum of each matrix. On a small decoder it needs far fewer steps than AdamW.
Matrices of one shape are processed as a batch, because small matrix products use a CPU poorly.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn


class Muon:
    """Momentum orthogonalised by Newton-Schulz steps (Keller Jordan et al., "Muon", 2024).

    An update has a root mean square of about `0.2 * lr`, after "Muon is Scalable for LLM Training"
    (Liu et al., 2025).
    """

    def __init__(self, matrices: list[nn.Parameter], *, momentum: float, weight_decay: float) -> None:
        """Group the matrices by shape.

        Args:
            matrices: Two-dimensional parameters.
            momentum: Factor of the old momentum in each step.
            weight_decay: Decoupled decay, multiplied by the learning rate.
        """
        self._groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            self._groups[matrix.shape].append(matrix)
        self._buffers = {shape: torch.zeros(len(group), *shape) for shape, group in self._groups.items()}
        self._momentum = momentum
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every matrix from its gradient with the learning rate `lr`."""
        for shape, group in self._groups.items():
            grads = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            buffer = self._buffers[shape].mul_(self._momentum).add_(grads, alpha=1 - self._momentum)
            updates = orthogonalise(grads.lerp(buffer, self._momentum))
            scale = 0.2 * max(shape) ** 0.5
            for matrix, update in zip(group, updates, strict=True):
                matrix.mul_(1 - lr * self._weight_decay).add_(update, alpha=-lr * scale)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of `matrices` ([count, rows, columns]) near one.

    Args:
        matrices: Any real matrices.
        steps: Number of quintic Newton-Schulz steps, with Jordan's coefficients.

    Returns:
        Matrices of the same shape with the same singular vectors.
    """
    flip = matrices.shape[1] > matrices.shape[2]
    state = (matrices.mT if flip else matrices).bfloat16()
    state = state / (state.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = state @ state.mT
        state = 3.4445 * state + (-4.7750 * gram + 2.0315 * gram @ gram) @ state
    directions: Tensor = (state.mT if flip else state).float()
    return directions
