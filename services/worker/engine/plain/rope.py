"""Rotary position embedding (Su et al., 2021) in the half-split layout of Hugging Face's Llama, with scaling.

Cosines and sines are a pure function of the position, so any block of the KV cache means the same wherever
it was computed. Formulas are evaluated in fp32 as in transformers (but for the growing base of dynamic
scaling), for far positions turn the rounding of frequencies into angles.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from services.worker.engine.config.rope import RopeConfig
from services.worker.engine.plain.placement import CPU, Placement

Rotation = tuple[Tensor, Tensor]
Rotations = Mapping[RopeConfig, Rotation]  # of the tokens of a batch, for each kind of layer


class RotaryEmbedding:
    """Cosines and sines by position.

    Args:
        context_length: Longest sequence in tokens; there are no positions beyond.
        placement: Where positions will be. Angles, cosines and sines are fp32 everywhere.
    """

    def __init__(self, rope: RopeConfig, context_length: int, placement: Placement = CPU) -> None:
        self.context_length = context_length
        self._rope = rope
        exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
        # made on the CPU for any device, so that they have the same bits
        self._frequencies = _frequencies(exponents, rope).to(placement.device)
        self._exponents = exponents.to(placement.device)
        self._scaling = _attention_scaling(rope)

    def table(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions 0 to `num_positions`, each fp32 [positions, rope.dim / 2].

        The attention scaling factor is in them. Raises `ValueError` beyond the context.
        """
        if num_positions > self.context_length:
            raise ValueError(f"{num_positions} positions of a context of {self.context_length}")
        return self._at(torch.arange(num_positions, device=self._exponents.device))

    def at(self, positions: Tensor) -> Rotation:
        """Cosines and signed sines of those positions, each [tokens, 1, rope.dim]; for `rotate`."""
        cos, sin = (side.unsqueeze(1) for side in self._at(positions))
        # with the signs in the sines, a rotation is a roll and a multiply-add
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def _at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = self._frequencies
        if self._rope.kind == "dynamic":
            frequencies = _dynamic_frequencies(positions, self._exponents, self._rope)
        angles = positions.to(torch.float32).unsqueeze(1) * frequencies
        return angles.cos().mul_(self._scaling), angles.sin().mul_(self._scaling)


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Rotates [tokens, heads, head_dim] by the angles of `RotaryEmbedding.at` for these tokens, in fp32.

    Dimensions beyond those of the angles stay as they are.
    """
    cos, signed_sin = rotation
    dim = cos.shape[-1]
    if dim < states.shape[-1]:
        return torch.cat((rotate(states[..., :dim], rotation), states[..., dim:]), dim=-1)
    rotated = torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1).to(cos.dtype), signed_sin)
    return rotated.to(states.dtype)


def _frequencies(exponents: Tensor, rope: RopeConfig) -> Tensor:
    """Radians per position, [rope.dim / 2], for kinds whose frequencies do not depend on the position."""
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, rope)
    if rope.kind == "longrope":
        # Ding et al., 2024: a factor found by search for each wavelength
        return 1.0 / (torch.tensor(rope.factors, dtype=torch.float32) * rope.theta**exponents)
    return plain


def _dynamic_frequencies(positions: Tensor, exponents: Tensor, rope: RopeConfig) -> Tensor:
    """Dynamic NTK: frequencies of a sequence that ends with the position, [positions, rope.dim / 2].

    The base grows with the length once that is beyond the original one, so low frequencies are stretched and
    high ones stay (transformers computes the same when it decodes token by token).
    """
    half = len(exponents)
    length = (positions + 1).clamp(min=rope.original_length).to(torch.float64)
    stretch = rope.factor * length / rope.original_length - (rope.factor - 1)
    base = rope.theta * stretch ** (half / (half - 1))
    return (1.0 / base.unsqueeze(1) ** exponents).to(torch.float32)


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: stretches long wavelengths, keeps short ones, and blends those between."""
    rotations = rope.original_length / (2 * math.pi / plain)  # rotations within the original context
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = ((rotations - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(plain: Tensor, rope: RopeConfig) -> Tensor:
    """YaRN (Peng et al., 2023): a linear blend over the dimensions between two numbers of rotations."""
    half = len(plain)

    def dimension(rotations: float) -> float:
        wavelength = rope.original_length / (rotations * 2 * math.pi)
        return half * math.log(wavelength) / math.log(rope.theta)

    first, last = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    # the upper bound is that of the whole head, as in the authors' code
    first, last = max(first, 0), min(last, 2 * half - 1)
    width = last - first if last != first else 0.001
    stretched = ((torch.arange(half, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def _attention_scaling(rope: RopeConfig) -> float:
    """The factor of cosines and sines; scores get its square."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor:
        return rope.attention_factor
    if rope.kind == "longrope":
        grows = rope.factor > 1.0
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_length)) if grows else 1.0

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
