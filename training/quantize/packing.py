"""The pack-quantized form of compressed-tensors: codes in 32-bit words, and the entry of `config.json`.

`NAME.weight_packed` int32 [outputs, inputs * bits / 32] has the codes of a row, from the lowest bits of its
first word on. `NAME.weight_scale` is [outputs, groups]. `NAME.weight_zero_point` of asymmetric grids, int32
[outputs * bits / 32, groups], has the zero points of a group's outputs in the same way. `NAME.weight_shape`
int64 [2] are outputs and inputs. A value is scale * (code - zero point); without zero points these are the
middle of the codes (compressed-tensors 0.17, `compressors/pack_quantized/`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from training.quantize.grids import Codes, Grid

_PACKED, _SCALE, _ZERO, _SHAPE = ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape"


def packed(module: str, codes: Codes) -> dict[str, Tensor]:
    """Return the tensors of a linear by name; `module` is its weight's name without `.weight`."""
    grid = codes.grid
    tensors = {
        module + _PACKED: _words(codes.codes, grid.bits),
        module + _SCALE: codes.scales.contiguous(),
        module + _SHAPE: torch.tensor(codes.codes.shape, dtype=torch.int64),
    }
    if not grid.symmetric:
        tensors[module + _ZERO] = _words(codes.zeros.T, grid.bits).T.contiguous()
    return tensors


def unpacked(module: str, tensors: Mapping[str, Tensor], grid: Grid) -> Codes:
    """Return the codes of a linear from its tensors; the inverse of `packed`."""
    outputs, inputs = (int(size) for size in tensors[module + _SHAPE])
    scales = tensors[module + _SCALE]
    zeros = torch.full(scales.shape, grid.middle, dtype=torch.uint8)
    if not grid.symmetric:
        zeros = _numbers(tensors[module + _ZERO].T.contiguous(), grid.bits, outputs).T.contiguous()
    return Codes(grid, _numbers(tensors[module + _PACKED], grid.bits, inputs), scales, zeros)


def quantization_config(grids: Mapping[str, Grid], ignored: Sequence[str]) -> dict[str, Any]:
    """Return what `config.json` has under `quantization_config`.

    Args:
        grids: Of each quantized linear, by module.
        ignored: Modules of linears that are floats.
    """
    targets: dict[Grid, list[str]] = {}
    for module, grid in grids.items():
        targets.setdefault(grid, []).append(module)
    groups = {}
    for number, (grid, modules) in enumerate(targets.items()):
        weights = {
            "num_bits": grid.bits,
            "type": "int",
            "symmetric": grid.symmetric,
            "strategy": "group",
            "group_size": grid.group,
            "actorder": None,
            "dynamic": False,
        }
        named = ["Linear"] if len(targets) == 1 else [f"re:^{re.escape(one)}$" for one in modules]
        groups[f"group_{number}"] = {
            "targets": named, "weights": weights, "input_activations": None, "output_activations": None,
        }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(ignored),
    }


def _words(codes: Tensor, bits: int) -> Tensor:
    """Pack numbers [rows, n] into int32 [rows, ceil(n * bits / 32)]."""
    each = 32 // bits
    rows, count = codes.shape
    padded = torch.nn.functional.pad(codes.to(torch.int64), (0, -count % each)).view(rows, -1, each)
    words = (padded << (torch.arange(each) * bits)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _numbers(words: Tensor, bits: int, count: int) -> Tensor:
    """Unpack int32 [rows, words] into uint8 [rows, count]."""
    each = 32 // bits
    spread = (words.to(torch.int64).unsqueeze(-1) >> (torch.arange(each) * bits)) & ((1 << bits) - 1)
    return spread.flatten(1)[:, :count].to(torch.uint8).contiguous()
