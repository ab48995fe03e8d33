"""Finds the integers of compressed-tensors' `pack-quantized` form in safetensors files; it imports no torch.

`NAME.weight_packed` int32 [outputs, words] has the codes of a row from the lowest bits of its first word on,
plus the middle of the range. `NAME.weight_scale` is [outputs, groups], `NAME.weight_shape` [2] the shape of
the matrix. `NAME.weight_zero_point`, if there is one, int32 [words, groups], is packed along the outputs.
`NAME.weight_g_idx`, if there is one, has the group of each input.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from services.worker.engine.checkpoint.codes.file_bytes import read_bytes
from services.worker.engine.checkpoint.codes.input_order import with_order
from services.worker.engine.checkpoint.codes.number_words import WORD
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, PackedParts, StoredTensor
from services.worker.engine.config.json_fields import ModelError

_PACKED, _SCALE, _ZERO, _SHAPE, _ORDER = (
    f".weight_{part}" for part in ("packed", "scale", "zero_point", "shape", "g_idx")
)
_BITS = (2, 3, 4, 8)


def joined_packed(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors with the parts of each packed matrix as one, under the name of its weight.

    Raises:
        ModelError: A part is missing or misshapen.
    """
    found = dict(tensors)
    for name, words in tensors.items():
        if not name.endswith(_PACKED):
            continue
        module = name.removesuffix(_PACKED)
        scales, shape = tensors.get(module + _SCALE), tensors.get(module + _SHAPE)
        if scales is None or shape is None or words.kind != "I32" or len(words.shape) != 2:
            raise ModelError(f"{words.path}: {name} has no proper weight_scale and weight_shape beside it")
        matrix = _matrix(name, words, scales, tensors.get(module + _ZERO), _read_shape(shape))
        found[module + ".weight"] = with_order(matrix, tensors.get(module + _ORDER))
        for suffix in (_PACKED, _SCALE, _ZERO, _SHAPE, _ORDER):
            found.pop(module + suffix, None)
    return found


def _matrix(
    name: str, words: StoredTensor, scales: StoredTensor, zeros: StoredTensor | None, shape: tuple[int, int]
) -> StoredTensor:
    """One stored tensor of the parts.

    Raises:
        ModelError: Their shapes contradict each other.
    """
    outputs, inputs = shape
    rows, width = words.shape
    bits = next((each for each in _BITS if -(-inputs * each // WORD) == width), 0)
    groups = scales.shape[1] if len(scales.shape) == 2 else 0
    fits = bits and rows == outputs and scales.kind in ITEM_BYTES and scales.shape[:1] == (outputs,)
    if not fits or not groups or inputs % groups or words.end - words.begin != rows * width * 4:
        raise ModelError(
            f"{words.path}: {name} is {words.kind} {list(words.shape)} with scales {list(scales.shape)}, "
            f"which is no matrix of {outputs} x {inputs} with 2, 3, 4 or 8 bits"
        )
    lines = -(-outputs * bits // WORD)
    if zeros is not None and (
        (zeros.kind, zeros.shape) != ("I32", (lines, groups)) or zeros.end - zeros.begin != lines * groups * 4
    ):
        raise ModelError(f"{words.path}: the zero points of {name} are {zeros.kind} {list(zeros.shape)}")
    parts = PackedParts(bits, width, scales, zeros, zero=1 << (bits - 1))
    return replace(words, kind=parts.kind, shape=(outputs, inputs), packed=parts)


def _read_shape(stored: StoredTensor) -> tuple[int, int]:
    kind = {"I64": np.int64, "I32": np.int32}.get(stored.kind)
    if kind is None or stored.shape != (2,):
        raise ModelError(
            f"{stored.path}: a weight_shape is {stored.kind} {list(stored.shape)}, not two integers"
        )
    outputs, inputs = read_bytes(stored, 0, 2 * np.dtype(kind).itemsize).view(kind).tolist()
    if not 0 < outputs < 2**31 or not 0 < inputs < 2**31:
        raise ModelError(f"{stored.path}: a weight_shape says {outputs} x {inputs}")
    return outputs, inputs
