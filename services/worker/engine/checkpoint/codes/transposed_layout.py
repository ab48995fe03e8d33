"""Finds the integers of GPTQ and AWQ in safetensors files; it imports no torch.

Both have `NAME.qweight`, `NAME.qzeros` and `NAME.scales` [groups, outputs] in halves. Words of GPTQ are
[words, outputs], each with consecutive inputs of an output from its lowest bits on; those of AWQ are
[inputs, words], each with eight outputs of an input in an order of its own. Zero points are packed along the
outputs, [groups, words]. Files of GPTQ's first format hold them less one. `NAME.g_idx` has the group of each
input, which with `desc_act` have an order of their own.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from services.worker.engine.checkpoint.codes.file_bytes import read_bytes
from services.worker.engine.checkpoint.codes.input_order import with_order
from services.worker.engine.checkpoint.codes.number_words import WORD, unpacked
from services.worker.engine.checkpoint.stored_tensor import PackedParts, StoredTensor
from services.worker.engine.config.json_fields import ModelError

_WORDS, _ZEROS, _SCALES, _ORDER = (f".{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
_BITS = (2, 3, 4, 8)


def joined_transposed(tensors: Mapping[str, StoredTensor], zeros_above: int) -> dict[str, StoredTensor]:
    """The tensors with the parts of each packed matrix as one, under the name of its weight.

    Args:
        zeros_above: What GPTQ's zero points are above those that are stored.

    Raises:
        ModelError: A part is missing or misshapen.
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
        found[module + ".weight"] = with_order(matrix, tensors.get(module + _ORDER))
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
        # words hold whole lines of numbers: of 3 bits, 32 of them are in three words
        bits = next((each for each in _BITS if WORD * zeros.shape[1] == outputs * each), 0)
        gptq = words.shape[1] == outputs
        whole = bits and (not gptq or WORD * words.shape[0] % bits == 0)
        inputs = WORD * words.shape[0] // bits if whole and gptq else words.shape[0]
        fits = gptq or (bits == 4 and words.shape[1] * WORD == outputs * bits)
        if whole and fits and zeros.shape[0] == groups and inputs % groups == 0:
            parts = PackedParts(
                bits, inputs * bits // WORD, scales, zeros, 0,
                form="gptq" if gptq else "awq", zeros_above=zeros_above if gptq else 0,
            )  # fmt: skip
            parts = _with_one_zero(parts)
            return replace(words, kind=parts.kind, shape=(outputs, inputs), packed=parts)
    raise ModelError(
        f"{words.path}: {name} {list(words.shape)} with qzeros {list(zeros.shape)} and scales "
        f"{list(scales.shape)} is no matrix of 2, 3, 4 or 8 bits"
    )


def _with_one_zero(parts: PackedParts) -> PackedParts:
    """The parts without zero points if all are the same: the kernels then need no offsets."""
    assert parts.zeros is not None
    words = read_bytes(parts.zeros, 0, parts.zeros.end - parts.zeros.begin).view(np.int32)
    numbers = unpacked(words.reshape(1, -1), parts.bits, len(words) * WORD // parts.bits)
    zero = int(numbers.flat[0]) + parts.zeros_above
    if (numbers == numbers.flat[0]).all() and zero < 1 << parts.bits:
        return replace(parts, zeros=None, zero=zero)
    return parts
