"""The oracle of the 8-bit kernels: quantizes weights and activations in blocks of 32 inputs, and multiplies.

Codes are from -127 to 127. Scales of weights are halves, those of activations fp32. Serves no requests.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.int8 import SCALE_BLOCK

LARGEST = 127
TINY = 1e-30  # activations: a block with nothing larger becomes zeros
SCALE_CANDIDATES = 16
_LARGEST_HALF = 65504.0


def quantize_activations(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, [rows, blocks, 32], and scales, [rows, blocks], of activations, [rows, inputs], in fp32.

    The largest magnitude of a block becomes 127. A block with a NaN or an infinity has a NaN for a scale.
    """
    values = _blocks(rows)
    peak = values.abs().amax(-1)
    inverse = torch.where(peak > TINY, LARGEST / peak, 0.0)
    damage = (values * 0).sum(-1)
    return torch.round(values * inverse.unsqueeze(-1)).nan_to_num(), peak / LARGEST + damage


def quantize_weights(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, [outputs, blocks, 32], and scales, [outputs, blocks], of a matrix, [outputs, inputs], in fp32.

    Candidates for a scale make the largest magnitude of the block 127, 126.5, and so on. The first one with
    the least squared error is taken. A block with a NaN, an infinity, or more than 127 times the largest half
    has a NaN for a scale.
    """
    values = _blocks(matrix)
    peak = values.abs().amax(-1)
    codes, scales = torch.zeros_like(values), torch.zeros_like(peak)
    least = torch.full_like(peak, torch.inf)
    for candidate in range(SCALE_CANDIDATES):
        scale = (peak / (LARGEST - 0.5 * candidate)).half().float()
        inverse = torch.where(scale > 0, 1 / scale, 0.0)
        found = torch.round(values * inverse.unsqueeze(-1)).clamp(-LARGEST, LARGEST)
        error = (values - scale.unsqueeze(-1) * found).square().sum(-1)
        better = (error < least) & (scale > 0)
        least = torch.where(better, error, least)
        scales = torch.where(better, scale, scales)
        codes = torch.where(better.unsqueeze(-1), found, codes)
    damaged = ~(peak <= LARGEST * _LARGEST_HALF)
    return codes.masked_fill(damaged.unsqueeze(-1), 0), scales.masked_fill(damaged, torch.nan)


def linear(rows: Tensor, matrix: Tensor) -> Tensor:
    """[rows, inputs] times the transpose of [outputs, inputs], both quantized: [rows, outputs].

    The products of a block are added up as integers. The sums are scaled and added in the order of blocks.
    """
    (codes, scales), (weights, weight_scales) = quantize_activations(rows), quantize_weights(matrix)
    result = torch.zeros(len(rows), len(matrix))
    for block in range(codes.shape[1]):
        dots = (codes[:, block].double() @ weights[:, block].double().T).float()  # exact
        result += dots * weight_scales[:, block] * scales[:, block, None]
    return result


def _blocks(rows: Tensor) -> Tensor:
    """[rows, inputs] -> [rows, blocks, 32], padded with zeros."""
    missing = -rows.shape[1] % SCALE_BLOCK
    return F.pad(rows.float(), (0, missing)).view(len(rows), -1, SCALE_BLOCK)
