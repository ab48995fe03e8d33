"""Finds the integers of GPTQ and AWQ in safetensors files; it imports no torch.

Both have `NAME.qweight`, `NAME.qzeros` and `NAME.scales` [groups, outputs] in halves. Words of GPTQ are
[words, outputs], each with consecutive inputs of an output from its lowest bits on; those of AWQ are
[inputs, words], each with eight outputs of an input in an order of its own. Zero points are packed along the
outputs, [groups, words]. Files of GPTQ's first format hold them less one.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from services.worker.engine.checkpoint.codes.packed_layout import WORD, read_bytes
from services.worker.engine.checkpoint.stored_tensor import PackedParts, StoredTensor
from services.worker.engine.config.json_fields import ModelError

_WORDS, _ZEROS, _SCALES, _ORDER = (f".{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
_BITS = (2, 4, 8)


def joined_transposed(tensors: Mapping[str, StoredTensor], zeros_above: int) -> dict[str, StoredTensor]:
    """The tensors with the parts of each packed matrix as one, under the name of its weight.

    Args:
        tensors: Of the files.
        zeros_above: What GPTQ's zero points are above those that are stored.

    Raises:
        ModelError: A part is missing or misshapen, or the inputs have an order of their own.
    """
    found = dict(tensors)
    for name, words in tensors.items():
        if not name.endswith(_WORDS):
            continue
        module = name.removesuffix(_WORDS)
        zeros, scales = tensors.get(module + _ZEROS), tensors.get(module + _SCALES)
        kinds = [part.kind if part is not None else "missing" for part in (words, zeros, scales)]
        if zeros is None or scales is None or kinds != ["I32", "I32", "F16"]:
            raise ModelError(
                f"{words.path}: {name}, qzeros and scales are {', '.join(kinds)}; "
                "they have to be I32, I32 and F16"
            )
        matrix = _matrix(name, words, zeros, scales, zeros_above)
        if module + _ORDER in tensors:
            _require_plain_order(tensors[module + _ORDER], matrix)
        found[module + ".weight"] = matrix
        for suffix in (_WORDS, _ZEROS, _SCALES, _ORDER):
            found.pop(module + suffix, None)
    return found


def _matrix(
    name: str, words: StoredTensor, zeros: StoredTensor, scales: StoredTensor, zeros_above: int
) -> StoredTensor:
    """One stored tensor of the parts.

    Raises:
        ModelError: Their shapes contradict each other.
    """
    shapes = [words.shape, zeros.shape, scales.shape]
    if all(len(shape) == 2 and min(shape) > 0 for shape in shapes):
        groups, outputs = scales.shape
        bits = next((each for each in _BITS if zeros.shape == (groups, outputs * each // WORD)), 0)
        each = WORD // bits if bits else WORD
        gptq = words.shape[1] == outputs
        inputs = words.shape[0] * (each if gptq else 1)
        fits = gptq or (bits == 4 and words.shape[1] * each == outputs)
        if bits and fits and outputs % each == 0 and inputs % groups == 0:
            parts = PackedParts(
                bits, inputs // each, scales, zeros, 0,
                form="gptq" if gptq else "awq", zeros_above=zeros_above if gptq else 0,
            )  # fmt: skip
            return replace(words, kind=f"INT{bits}", shape=(outputs, inputs), packed=_with_one_zero(parts))
    raise ModelError(
        f"{words.path}: {name} {list(words.shape)} with qzeros {list(zeros.shape)} and scales "
        f"{list(scales.shape)} is no matrix of 2, 4 or 8 bits"
    )


def _with_one_zero(parts: PackedParts) -> PackedParts:
    """The parts without zero points if all are the same: the kernels then need no offsets."""
    assert parts.zeros is not None
    held = read_bytes(parts.zeros, 0, parts.zeros.end - parts.zeros.begin)
    numbers = held[:, None] >> np.arange(0, 8, min(8, parts.bits), dtype=np.uint8) & ((1 << parts.bits) - 1)
    zero = int(numbers.flat[0]) + parts.zeros_above
    if (numbers == numbers.flat[0]).all() and zero < 1 << parts.bits:
        return replace(parts, zeros=None, zero=zero)
    return parts


def _require_plain_order(order: StoredTensor, matrix: StoredTensor) -> None:
    assert matrix.packed is not None
    inputs = matrix.shape[1]
    plain = np.arange(inputs) // (inputs // matrix.packed.groups)
    if order.kind != "I32" or order.shape != (inputs,):
        raise ModelError(f"{order.path}: a g_idx is {order.kind} {list(order.shape)}, not {inputs} integers")
    if not np.array_equal(read_bytes(order, 0, 4 * inputs).view(np.int32), plain):
        raise ModelError(
            f"{order.path}: the groups of inputs have an order of their own (`desc_act`), which is not "
            "read; take a file of the model without it"
        )
