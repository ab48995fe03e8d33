"""The oracle of the kernels of codes: quantizes activations in blocks of 32 inputs, and multiplies.

Activations are quantized as for 8-bit weights (`int8.py`). Serves no requests.
"""

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import LEAST_GROUP, EncodedMatrix
from services.worker.engine.int8 import SCALE_BLOCK
from services.worker.engine.plain.references.int8 import quantize_activations


def linear(rows: Tensor, matrix: EncodedMatrix) -> Tensor:
    """[rows, inputs] times the transpose of [outputs, inputs]: [rows, outputs].

    The products of a group within a block are added up as integers. The sums are scaled and added in the
    order of inputs.
    """
    if matrix.order is not None:
        rows = torch.where(matrix.order >= 0, rows[:, matrix.order.clamp(min=0).long()], 0.0)
    codes, scales = quantize_activations(rows)
    part = min(matrix.group, SCALE_BLOCK)
    assert part in {LEAST_GROUP, SCALE_BLOCK}
    missing = codes.shape[1] * SCALE_BLOCK - matrix.shape[1]
    units = torch.nn.functional.pad(_units(matrix), (0, missing)).view(matrix.shape[0], -1, part)
    inputs = codes.reshape(len(rows), -1, part)
    result = torch.zeros(len(rows), matrix.shape[0])
    for index in range(units.shape[1]):
        group, block = index * part // matrix.group, index * part // SCALE_BLOCK
        if group >= matrix.scales.shape[1]:
            continue  # inputs that are padding
        dots = (inputs[:, index].double() @ units[:, index].double().T).float()  # exact
        result += dots * matrix.scales[:, group].float() * scales[:, block, None]
        if matrix.offsets is not None:
            sums = inputs[:, index].sum(-1)
            result -= matrix.offsets[:, group].float() * (sums * scales[:, block])[:, None]
    return result


def _units(matrix: EncodedMatrix) -> Tensor:
    if matrix.table is None:
        return matrix.codes.float() - matrix.zero
    return matrix.table.float()[matrix.codes.long()]
