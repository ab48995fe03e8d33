"""Sums up how far distributions of the next token are from those of fp32: perplexity, KL, top-1 agreement."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Logits = NDArray[np.float32]  # [positions, vocab]


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions of the next token in float64, [positions, vocab], and the likeliest token of each."""

    logs: Tensor
    probabilities: Tensor
    top1: Tensor

    @classmethod
    def of(cls, logits: Logits) -> "Distributions":
        """Return the softmax of logits."""
        logs = torch.from_numpy(logits).double().log_softmax(-1)
        return cls(logs, logs.exp(), logs.argmax(-1))


@dataclass(slots=True)
class Divergence:
    """Sums over the positions so far. KL is of fp32's distribution from the other, in nats."""

    num_tokens: int = 0
    kl: float = 0.0
    same_top1: int = 0
    loss: float = 0.0
    fp32_loss: float = 0.0

    def add(self, fp32: Distributions, other: Logits, targets: list[int]) -> None:
        """Count some positions.

        Args:
            other: Logits of the compared precision at the same positions.
            targets: The token that follows at each position.
        """
        found, rows = torch.from_numpy(other).double().log_softmax(-1), torch.arange(len(targets))
        self.num_tokens += len(targets)
        self.kl += float((fp32.probabilities * (fp32.logs - found)).sum())
        self.same_top1 += int((fp32.top1 == found.argmax(-1)).sum())
        self.loss -= float(found[rows, targets].sum())
        self.fp32_loss -= float(fp32.logs[rows, targets].sum())

    def figures(self) -> dict[str, Any]:
        """Return the means; `perplexity_change` and `top1` are fractions."""
        return {
            "perplexity_change": round(math.exp((self.loss - self.fp32_loss) / self.num_tokens) - 1, 6),
            "kl": round(self.kl / self.num_tokens, 7),
            "top1": round(self.same_top1 / self.num_tokens, 5),
            "perplexity": round(math.exp(self.loss / self.num_tokens), 4),
            "fp32_perplexity": round(math.exp(self.fp32_loss / self.num_tokens), 4),
            "places": self.num_tokens,
        }
